"""The panes of the main screen, a file each, and the modal screens over them."""
