module github.com/sidecarset/operator

go 1.26.0
