"""What charts show: from tables of a run to figures, as pure functions.

A figure is plain data, in Plotly's words: lines (`data`), bands, marks and axes (`layout`), and
what is said of them (`meta` of the layout). Plotly draws it on the dashboard, `svg` in reports and
notebooks.
"""
