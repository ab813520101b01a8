"""Figures from the tables of a run, as pure functions.

A figure is plain data in Plotly's terms: lines (`data`), bands, marks and axes (`layout`), and a
description (`meta` of the layout). Plotly draws it on the dashboard, `svg` in reports and
notebooks.
"""
