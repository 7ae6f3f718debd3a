package conversion_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/conversion"
)

const (
	alpha = "apps.kruise.io/v1alpha1"
	beta  = "apps.kruise.io/v1beta1"
)

func TestConvert(t *testing.T) {
	tests := map[string]struct{ from, to, in, want string }{ // members beside apiVersion and kind
		"v1alpha1 namespace becomes a namespaceSelector": {alpha, beta, `{"spec":{"namespace":"ns1","selector":{"matchLabels":{"app":"web"}}}}`,
			`{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}},"selector":{"matchLabels":{"app":"web"}}}}`},
		"v1alpha1 namespace beats namespaceSelector": {alpha, beta, `{"spec":{"namespace":"ns1","namespaceSelector":{"matchLabels":{"team":"a"},"matchExpressions":[{"key":"x","operator":"Exists"}]}}}`,
			`{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`},
		"an empty v1alpha1 namespace leaves namespaceSelector alone": {alpha, beta, `{"spec":{"namespace":"","namespaceSelector":{"matchLabels":{"team":"a"}}}}`,
			`{"spec":{"namespaceSelector":{"matchLabels":{"team":"a"}}}}`},
		"a null v1alpha1 namespace is an absent one": {alpha, beta, `{"spec":{"namespace":null}}`,
			`{"spec":{}}`},
		"the custom-version label becomes customVersion, other labels stay": {alpha, beta, `{"metadata":{"name":"a","labels":{"apps.kruise.io/sidecarset-custom-version":"v2","team":"a"}},"spec":{}}`,
			`{"metadata":{"name":"a","labels":{"team":"a"}},"spec":{"customVersion":"v2"}}`},
		"the only label leaves no empty labels behind": {alpha, beta, `{"metadata":{"name":"a","labels":{"apps.kruise.io/sidecarset-custom-version":"v2"}}}`,
			`{"metadata":{"name":"a"},"spec":{"customVersion":"v2"}}`},
		"an empty custom-version label is removed and means no customVersion": {alpha, beta, `{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":"","team":"a"}},"spec":{}}`,
			`{"metadata":{"labels":{"team":"a"}},"spec":{}}`},
		"customVersion becomes the label": {beta, alpha, `{"metadata":{"labels":{"team":"a"}},"spec":{"customVersion":"v2"}}`,
			`{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":"v2","team":"a"}},"spec":{}}`},
		"customVersion overwrites a label that is there already": {beta, alpha, `{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":"v1"}},"spec":{"customVersion":"v2"}}`,
			`{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":"v2"}},"spec":{}}`},
		"a customVersion that no label can have is left out, or no list of v1alpha1 would be answered": {beta, alpha, `{"metadata":{"labels":{"team":"a"}},"spec":{"customVersion":"a b"}}`,
			`{"metadata":{"labels":{"team":"a"}},"spec":{}}`},
		"without customVersion a plain label is kept": {beta, alpha, `{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":"v1"}},"spec":{"customVersion":""}}`,
			`{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":"v1"}},"spec":{}}`},
		"customVersion without any metadata makes metadata": {beta, alpha, `{"spec":{"customVersion":"v2"}}`,
			`{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":"v2"}},"spec":{}}`},
		"a namespaceSelector of the form of a namespace becomes namespace": {beta, alpha, `{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`,
			`{"spec":{"namespace":"ns1"}}`},
		"a namespaceSelector with another label stays": {beta, alpha, `{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1","team":"a"}}}}`,
			`{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1","team":"a"}}}}`},
		"a namespaceSelector with expressions stays": {beta, alpha, `{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"},"matchExpressions":[]}}}`,
			`{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"},"matchExpressions":[]}}}`},
		"a namespaceSelector without a name stays": {beta, alpha, `{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":""}}}}`,
			`{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":""}}}}`},
		"a v1alpha1 namespaceSelector of that form is remembered": {alpha, beta, `{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`,
			`{"metadata":{"annotations":{"sidecarset.io/v1alpha1-namespace-selector":"true"}},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`},
		"a remembered namespaceSelector stays, and v1alpha1 does not show the annotation": {beta, alpha, `{"metadata":{"annotations":{"sidecarset.io/v1alpha1-namespace-selector":"true"}},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`,
			`{"metadata":{},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`},
		"a v1alpha1 namespace beside a namespaceSelector that says the same is that namespaceSelector": {alpha, beta, `{"spec":{"namespace":"ns1","namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`,
			`{"metadata":{"annotations":{"sidecarset.io/v1alpha1-namespace-selector":"true"}},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`},
		"a v1alpha1 user cannot write the annotation": {alpha, beta, `{"metadata":{"annotations":{"sidecarset.io/v1alpha1-namespace-selector":"true","k":"v"}},"spec":{"namespace":"ns1"}}`,
			`{"metadata":{"annotations":{"k":"v"}},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`},
		"a member that only the target version knows gains no meaning": {beta, alpha, `{"spec":{"namespace":"ns1"}}`,
			`{"spec":{}}`},
		"a v1alpha1 customVersion gains no meaning": {alpha, beta, `{"spec":{"customVersion":"v9"}}`,
			`{"spec":{}}`},
		"status, unknown members and nulls are carried over": {alpha, beta, `{"metadata":{"name":"a","annotations":{"k":"v"},"managedFields":[{"manager":"m"}],"labels":null},"spec":{"containers":[{"name":"c","inventedField":{"deep":[1,2.5,null]}}],"volumes":null,"imagePullSecrets":[]},"status":{"matchedPods":3,"updatedPods":9007199254740993,"readyPods":0,"revisions":[{"name":"log-1","pods":2,"readyPods":0}],"uninjected":[{"reason":"x","pods":1,"first":["a/b"]}],"blockedPods":[],"invented":"x"},"extra":[]}`,
			`{"metadata":{"name":"a","annotations":{"k":"v"},"managedFields":[{"manager":"m"}],"labels":null},"spec":{"containers":[{"name":"c","inventedField":{"deep":[1,2.5,null]}}],"volumes":null,"imagePullSecrets":[]},"status":{"matchedPods":3,"updatedPods":9007199254740993,"readyPods":0,"revisions":[{"name":"log-1","pods":2,"readyPods":0}],"uninjected":[{"reason":"x","pods":1,"first":["a/b"]}],"blockedPods":[],"invented":"x"},"extra":[]}`},
		"an object without spec stays one": {alpha, beta, `{"metadata":{"name":"a"}}`,
			`{"metadata":{"name":"a"}}`},
		"a null spec stays null": {beta, alpha, `{"spec":null}`,
			`{"spec":null}`},
		"the same version is returned as it is": {alpha, alpha, `{"spec":{"namespace":"ns1"}}`,
			`{"spec":{"namespace":"ns1"}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in, untouched := object(t, tc.from, tc.in), object(t, tc.from, tc.in)
			got, err := conversion.Convert(in, tc.to)
			if err != nil {
				t.Fatalf("Convert: %v", err)
			}
			if diff := cmp.Diff(object(t, tc.to, tc.want), got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(untouched, in); diff != "" {
				t.Errorf("the input was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestConvertRefuses(t *testing.T) {
	tests := map[string]struct {
		object, to string
		want       []string // parts of the message
	}{
		"an unknown desired version":              {`{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"mesh"}}`, "apps.kruise.io/v2", []string{"SidecarSet mesh", `"apps.kruise.io/v2"`, "want apps.kruise.io/v1beta1"}},
		"an unknown version of the object":        {`{"apiVersion":"apps.kruise.io/v2","kind":"SidecarSet","metadata":{"name":"mesh"}}`, beta, []string{"SidecarSet mesh", "apps.kruise.io/v2"}},
		"another kind":                            {`{"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet"}`, beta, []string{"CloneSet", "want SidecarSet"}},
		"an object without kind":                  {`{}`, beta, []string{"without a name", "want SidecarSet"}},
		"a namespace that is a number":            {`{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"mesh"},"spec":{"namespace":5}}`, beta, []string{"SidecarSet mesh", "spec.namespace is not a string"}},
		"a customVersion that is a list":          {`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","spec":{"customVersion":[]}}`, alpha, []string{"spec.customVersion is not a string"}},
		"a custom-version label that is a number": {`{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":1}}}`, beta, []string{"metadata.labels[apps.kruise.io/sidecarset-custom-version] is not a string"}},
		"labels that are a list":                  {`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"labels":[]}}`, alpha, []string{"metadata.labels is not an object"}},
		"annotations that are text":               {`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"annotations":"x"}}`, alpha, []string{"metadata.annotations is not an object"}},
		"metadata that is text":                   {`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":"x"}`, alpha, []string{"metadata is not an object"}},
		"a spec that is a list":                   {`{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","spec":[]}`, beta, []string{"spec is not an object"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := conversion.Convert(parse(t, tc.object), tc.to)
			if err == nil {
				t.Fatalf("Convert accepted it: %v", got)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("message %q lacks %q", err, part)
				}
			}
		})
	}
}

func object(t *testing.T, apiVersion, members string) map[string]any {
	t.Helper()
	o := parse(t, members)
	o["apiVersion"], o["kind"] = apiVersion, "SidecarSet"
	return o
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var o map[string]any
	if err := decoder.Decode(&o); err != nil {
		t.Fatalf("parsing %s: %v", text, err)
	}
	return o
}
