"""Generic views of lines: drawing, scrolling, searching, highlighting. They know no kernels."""
