package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/conversion"
	"github.com/sidecarset/operator/internal/defaults"
	"github.com/sidecarset/operator/internal/validation"
)

var noWhitelist = validation.Whitelist{Namespace: "sidecarset-system"}

func TestSamplesAreAccepted(t *testing.T) {
	for _, path := range files(t, "samples/*.yaml") {
		if filepath.Base(path) == "kustomization.yaml" {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			for _, document := range documents(t, path) {
				for _, err := range problems(t, document, noWhitelist) {
					t.Error(err)
				}
			}
		})
	}
}

func TestSampleWithAnnotationsNeedsItsWhitelist(t *testing.T) {
	var configMap corev1.ConfigMap
	convert(t, documents(t, "samples/pod-annotations/whitelist.yaml")[0], &configMap)
	if configMap.Name != validation.WhitelistConfigMap {
		t.Errorf("the ConfigMap is called %s, want %s", configMap.Name, validation.WhitelistConfigMap)
	}
	whitelist := validation.Whitelist{Namespace: configMap.Namespace, Content: configMap.Data[validation.WhitelistKey]}
	sample := documents(t, "samples/pod-annotations/sidecarset.yaml")[0]
	if errs := problems(t, sample, noWhitelist); len(errs) == 0 {
		t.Error("it is accepted without a whitelist")
	}
	for _, err := range problems(t, sample, whitelist) {
		t.Error(err)
	}
}

// The samples apply as a whole, so each of them has to be in the kustomization.
func TestKustomizationListsEverySample(t *testing.T) {
	data, err := os.ReadFile("samples/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files(t, "samples/*.yaml") {
		name := filepath.Base(path)
		if name != "kustomization.yaml" && !strings.Contains(string(data), "\n- "+name+"\n") {
			t.Errorf("kustomization.yaml lacks %s", name)
		}
	}
}

// All samples can be applied to one cluster: none has the name of another one, or a
// container or volume that clashes with those of another one.
func TestSamplesDoNotClash(t *testing.T) {
	var sets []appsv1beta1.SidecarSet
	for _, path := range files(t, "samples/*.yaml") {
		for _, document := range documents(t, path) {
			if document["kind"] == "SidecarSet" {
				sets = append(sets, decodeSidecarSet(t, document))
			}
		}
	}
	known := map[string]bool{}
	for i := range sets {
		if name := sets[i].Name; known[name] {
			t.Errorf("two samples are named %s", name)
		}
		known[sets[i].Name] = true
		var all []*appsv1beta1.SidecarSet
		for j := range sets {
			all = append(all, &sets[j])
		}
		conflicts := validation.FindConflicts(&sets[i], all)
		environment := validation.Environment{Conflicts: conflicts, ExcludedNamespaces: []string{"kube-system", "sidecarset-system"}}
		for _, err := range validation.Create(&sets[i], environment) {
			t.Errorf("%s beside the others: %v", sets[i].Name, err)
		}
	}
}

// Each broken sample is refused with the message that it announces. Those that only the API
// server refuses are sent to one by test/integration.
func TestInvalidSamplesAreRefused(t *testing.T) {
	for _, path := range files(t, "samples/invalid/*.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			wanted, byAPIServer := announced(string(data))
			if len(wanted) == 0 {
				t.Fatal("the file announces no message; add a comment # want: …")
			}
			if byAPIServer {
				return
			}
			errs := problems(t, documents(t, path)[0], noWhitelist)
			if len(errs) == 0 {
				t.Fatal("it is accepted")
			}
			message := errs.ToAggregate().Error()
			for _, want := range wanted {
				if !strings.Contains(message, want) {
					t.Errorf("message %q lacks %q", message, want)
				}
			}
		})
	}
}

// announced reads the comments at the top of a broken sample.
func announced(content string) (wanted []string, byAPIServer bool) {
	for line := range strings.Lines(content) {
		comment, ok := strings.CutPrefix(line, "# ")
		if !ok {
			return wanted, byAPIServer
		}
		if want, ok := strings.CutPrefix(comment, "want: "); ok {
			wanted = append(wanted, strings.TrimSpace(want))
		}
		byAPIServer = byAPIServer || strings.HasPrefix(comment, "Refused by the schema") || strings.HasPrefix(comment, "Found by an API server")
	}
	return wanted, byAPIServer
}

// problems takes a document the way of the webhooks: defaults, then validation.
func problems(t *testing.T, document map[string]any, whitelist validation.Whitelist) field.ErrorList {
	t.Helper()
	set := decodeSidecarSet(t, document)
	return validation.Create(&set, validation.Environment{Whitelist: whitelist, ExcludedNamespaces: []string{"kube-system", "sidecarset-system"}})
}

// decodeSidecarSet returns what the webhooks make of a document: v1beta1, with defaults.
// A member that no version knows fails the test.
func decodeSidecarSet(t *testing.T, document map[string]any) appsv1beta1.SidecarSet {
	t.Helper()
	if document["apiVersion"] == appsv1alpha1.GroupVersion.String() {
		convert(t, document, &appsv1alpha1.SidecarSet{})
	}
	object, err := conversion.Convert(document, appsv1beta1.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1beta1.SidecarSet
	convert(t, object, &set)

	defaults.Apply(object)
	data, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	set = appsv1beta1.SidecarSet{}
	if err := yaml.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files match %s: %v", pattern, err)
	}
	return paths
}
