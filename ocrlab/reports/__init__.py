"""What a notebook or report shows and keeps: parameters, outcome, results, plots. It belongs to the watching half.

Nothing here imports torch or OpenCV: images and maps come as arrays, figures leave as a `View` (HTML and its text).
"""
