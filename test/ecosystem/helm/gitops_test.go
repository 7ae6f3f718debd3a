package helm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/test/deploy"
)

// The files for Flux have no field that its types do not have, and the values in them and in the file for Argo CD are values of the chart.
func TestGitOps(t *testing.T) {
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, helmv2.AddToScheme, kustomizev1.AddToScheme, sourcev1.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	for _, text := range documents(t, "flux/operator.yaml", "flux/sidecarsets.yaml") {
		object, _, err := decoder.Decode(text, nil, nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
		if release, ok := object.(*helmv2.HelmRelease); ok {
			renders(t, release.GetValues())
		}
	}
	for _, text := range documents(t, "argocd/application.yaml") {
		var application struct {
			Spec struct {
				Source struct {
					Helm struct{ ValuesObject map[string]any }
				}
			}
		}
		if err := yaml.Unmarshal(text, &application); err != nil {
			t.Error(err)
		}
		renders(t, application.Spec.Source.Helm.ValuesObject)
	}
}

// documents are read from the files in gitops/.
func documents(t *testing.T, files ...string) (all [][]byte) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(deploy.Root(), "docs/examples/gitops", file))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.Split(text, []byte("\n---\n"))...)
	}
	return all
}

func renders(t *testing.T, values map[string]any) {
	t.Helper()
	if len(values) == 0 {
		t.Error("there are no values")
	}
	if _, err := template("sidecarset-system", values); err != nil {
		t.Errorf("%v: %v", values, err)
	}
}
