"""The terminal UI over dumps, `pallas-debug browse`. The only package that imports Textual.

It reads dumps through `store/` and `ir/`, and never writes to them. From top to bottom, each part
imports only from those below it:

    app         `BrowseApp`: the workspace with all of its actions
    commands/   actions, as mixins: moving, viewing, output
    workspace   the main screen: its panes, what they show, how they are arranged
    shell       generic app: prompt, title and status line, signals
    panes/      kernels, steps, text, diff, failure; modal screens
    widgets/    views of lines: drawing, searching, highlighting
    model/      dumps as rows and texts; search over many texts; the place to open
    keys        registry of actions
    terminal    hang-up, editor
    _textual    workarounds that need private parts of Textual
"""
