package revision

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/members"
)

func specFromYAML(t *testing.T, text string) map[string]any {
	t.Helper()
	var spec map[string]any
	if err := yaml.Unmarshal([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

const (
	exampleData = `{"spec":{"$patch":"replace","containers":[{"image":"busybox:1.36","imagePullPolicy":"IfNotPresent","name":"agent","podInjectPolicy":"BeforeAppContainer","resources":{},"shareVolumePolicy":{"type":"disabled"},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","upgradeStrategy":{"upgradeType":"ColdUpgrade"}}],"imagePullSecrets":null,"initContainers":null,"patchPodMetadata":null,"volumes":null}}`
	bareData    = `{"spec":{"$patch":"replace","containers":[{"image":"test-image","name":"container1","resources":{},"shareVolumePolicy":{},"upgradeStrategy":{}}],"imagePullSecrets":null,"initContainers":null,"patchPodMetadata":null,"volumes":null}}`
)

// The vectors were computed by OpenKruise 1.9.
func TestDataAndSuffixAreThoseOfTheReference(t *testing.T) {
	tests := map[string]struct {
		spec, data string
		collisions int32
		suffix     string
	}{
		"a defaulted container": {spec: referenceVectors["one container"].spec, data: exampleData, suffix: "6d5857687f"},
		"members that are always written": {
			spec: `containers: [{name: container1, image: test-image}]`, data: bareData, suffix: "6f84bc646f",
		},
		"a collision": {
			spec: `containers: [{name: container1, image: test-image}]`, data: bareData, collisions: 1, suffix: "6f84bc646d",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			data, err := Data(specFromYAML(t, tc.spec))
			if err != nil {
				t.Fatalf("Data: %v", err)
			}
			if diff := cmp.Diff(tc.data, string(data)); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			if got := Suffix(data, tc.collisions); got != tc.suffix {
				t.Errorf("suffix %s, want %s", got, tc.suffix)
			}
		})
	}
}

func TestData(t *testing.T) {
	const rest = `"imagePullSecrets":null,"initContainers":null,"patchPodMetadata":null,"volumes":null}}`
	tests := map[string]struct{ spec, want string }{
		"an empty list is written as an absent one": {
			`{containers: [], volumes: []}`,
			`{"spec":{"$patch":"replace","containers":null,` + rest,
		},
		"other members of the spec are not recorded": {
			`{selector: {matchLabels: {a: b}}, customVersion: v1, paused: true}`,
			`{"spec":{"$patch":"replace","containers":null,` + rest,
		},
		"HTML is escaped, quantities are canonical": {
			`containers: [{name: a, args: ["<&>"], resources: {limits: {cpu: 1000m}}}]`,
			`{"spec":{"$patch":"replace","containers":[{"args":["\u003c\u0026\u003e"],"name":"a","resources":{"limits":{"cpu":"1"}},"shareVolumePolicy":{},"upgradeStrategy":{}}],` + rest,
		},
		"volumes, pull secrets and metadata are written as they are, without nulls": {
			`{imagePullSecrets: [{name: s}], patchPodMetadata: [{patchPolicy: Retain, annotations: {a: b}}], volumes: [{name: v, hostPath: null, emptyDir: {sizeLimit: 1024Mi}}]}`,
			`{"spec":{"$patch":"replace","containers":null,"imagePullSecrets":[{"name":"s"}],"initContainers":null,"patchPodMetadata":[{"annotations":{"a":"b"},"patchPolicy":"Retain"}],"volumes":[{"emptyDir":{"sizeLimit":"1024Mi"},"name":"v"}]}}`,
		},
		"unknown members survive at every depth": {
			`{containers: [{name: a, new: {x: [1, null]}, env: [{name: E}, {name: F, newer: true}], securityContext: {newest: 1.5}}], volumes: [{name: v, future: {}}]}`,
			`{"spec":{"$patch":"replace","containers":[{"env":[{"name":"E"},{"name":"F","newer":true}],"name":"a","new":{"x":[1,null]},"resources":{},"securityContext":{"newest":1.5},"shareVolumePolicy":{},"upgradeStrategy":{}}],"imagePullSecrets":null,"initContainers":null,"patchPodMetadata":null,"volumes":[{"future":{},"name":"v"}]}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Data(specFromYAML(t, tc.spec))
			if err != nil {
				t.Fatalf("Data: %v", err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDataNamesWhatHasTheWrongType(t *testing.T) {
	_, err := Data(specFromYAML(t, `initContainers: [{name: a}, {name: b, image: 1}]`))
	if err == nil || !strings.Contains(err.Error(), "spec.initContainers[1].image") {
		t.Errorf("error %v", err)
	}
}

func TestNameCutsLongNames(t *testing.T) {
	if got := Name(strings.Repeat("a", 230), "x"); got != strings.Repeat("a", 223)+"-x" {
		t.Errorf("name %s", got)
	}
}

// Recording a restored revision gives the same data.
func TestDataSurvivesBeingRestored(t *testing.T) {
	for name, v := range referenceVectors {
		t.Run(name, func(t *testing.T) {
			data, err := Data(specFromYAML(t, v.spec))
			if err != nil {
				t.Fatalf("Data: %v", err)
			}
			spec, err := Spec(data)
			if err != nil {
				t.Fatalf("reading it: %v", err)
			}
			again, err := Data(spec)
			if err != nil || string(again) != string(data) {
				t.Errorf("%v\nfirst %s\nthen  %s", err, data, again)
			}
		})
	}
}

// A member that OpenKruise does not record changes no revision of a SidecarSet without it.
func TestDataWithAnotherMember(t *testing.T) {
	more := append([]members.Member{{Name: "more", Kind: members.Objects}}, members.Injected...)
	const spec = "containers: [{name: container1, image: test-image}]"
	for added, want := range map[string]string{
		"":                      bareData,
		"\nmore: []":            bareData,
		"\nmore: [{name: one}]": strings.Replace(bareData, `,"patchPodMetadata"`, `,"more":[{"name":"one"}],"patchPodMetadata"`, 1),
	} {
		got, err := data(specFromYAML(t, spec+added), more)
		if err != nil || string(got) != want {
			t.Errorf("with %q: %s, %v; want %s", added, got, err, want)
		}
	}
}
