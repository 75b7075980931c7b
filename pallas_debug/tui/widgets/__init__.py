"""Generic views of lines: drawing, scrolling, searching, highlighting. Independent of kernels."""
