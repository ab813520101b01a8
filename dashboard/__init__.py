"""The dashboard: lldscope's answers in a browser, live. It asks lldscope and analyses nothing.

cli → server (waitress, token) → app (frame, callbacks) → run registry (open runs) → lldscope
                                  pages get snapshots of runs; figures make pictures of them
"""
