module github.com/sidecarset/operator/test/helm

go 1.26.0

replace github.com/sidecarset/operator => ../..

require (
	github.com/sidecarset/operator v0.0.0
	helm.sh/helm/v4 v4.3.1
)
