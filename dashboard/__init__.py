"""The dashboard: lldscope's answers in a browser, live. It asks lldscope and analyses nothing.

cli → server (waitress, token) → app (pages, callbacks) → run registry (open runs) → lldscope
                                  └ charts, figures, series, parts: from those answers to pictures
"""
