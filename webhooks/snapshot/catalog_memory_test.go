package snapshot

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/test/rounds"
)

// mostTimesItsBytes bounds the memory that a replica needs for a stored SidecarSet, as a
// multiple of its stored bytes. So a limit on what is stored also limits the memory.
const mostTimesItsBytes = 3

// storedText is a SidecarSet as an API server stores it, with some number of containers, and
// of variables in each container.
func storedText(t *testing.T, serial, containers, variables int, template bool) []byte {
	t.Helper()
	set := fixtures.SidecarSet(fmt.Sprintf("set-%03d", serial)).Select("app", fmt.Sprint("web-", serial))
	for c := range containers {
		set.Container(fmt.Sprint("side-", c), "registry.example.com/team/sidecar:v1.2.3")
		env := make([]any, variables)
		for i := range env {
			env[i] = map[string]any{"name": fmt.Sprintf("VARIABLE_%d_%d", serial, i), "value": fmt.Sprintf("value %d of variable %d", serial, i)}
		}
		set.With("env", env)
		if template {
			set.With("shareVolumePolicy", map[string]any{"type": "enabled"})
		}
	}
	object := set.Map()
	object["metadata"].(map[string]any)["uid"] = fmt.Sprintf("3f0c1d2e-4b5a-4c6d-8e7f-%012d", serial)
	object["metadata"].(map[string]any)["resourceVersion"] = fmt.Sprint(serial + 1)
	object["metadata"].(map[string]any)["generation"] = 1
	condition := func(kind string) any {
		return map[string]any{"type": kind, "status": "True", "reason": "InForce", "message": "The next Pod that is selected will be injected.",
			"observedGeneration": 1, "lastTransitionTime": "2026-01-02T03:04:05Z"}
	}
	object["status"] = map[string]any{"observedGeneration": 1, "matchedPods": 10, "updatedPods": 10, "readyPods": 10, "updatedReadyPods": 10,
		"latestRevision": "set-6f84bc646f", "collisionCount": 0, "conditions": []any{condition("Accepted"), condition("Ready")}}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestMemoryPerStoredSidecarSet(t *testing.T) {
	rounds.NeedExactMemory(t)
	tests := map[string]struct {
		sets, containers, variables int
		template                    bool
	}{
		"348 KB":                         {8, 4, 1390, false},
		"348 KB, parts depend on Pods":   {8, 4, 1390, true},
		"10 KB":                          {100, 2, 70, false},
		"10 KB, with parts that do":      {100, 2, 70, true},
		"10 KB, of ten small containers": {100, 10, 9, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			sets := tc.sets
			transform := CacheOptions(NewHealth(), "ours").ByObject
			var pack func(any) (any, error)
			for object, options := range transform {
				if object.GetObjectKind().GroupVersionKind().Kind == "SidecarSet" {
					pack = options.Transform
				}
			}
			registry := prometheus.NewRegistry()
			c := NewCatalog(nil, registry)
			informer := make([]*unstructured.Unstructured, sets)
			stored := 0
			warmUp(t)
			before := heapInUse()
			for i := range informer {
				text := storedText(t, i, tc.containers, tc.variables, tc.template)
				stored += len(text)
				object := &unstructured.Unstructured{}
				if err := object.UnmarshalJSON(text); err != nil {
					t.Fatal(err)
				}
				packed, err := pack(object)
				if err != nil {
					t.Fatal(err)
				}
				informer[i] = packed.(*unstructured.Unstructured)
				c.sidecarSetChanged(informer[i].GetName(), informer[i], nil)
				c.rebuild(logr.Discard())
			}
			held := heapInUse() - before
			if n := len(c.Current().Programs()); n != sets {
				t.Fatalf("%d SidecarSets can be used, want %d", n, sets)
			}
			t.Logf("%d bytes each take %.2f times as much", stored/sets, float64(held)/float64(stored))
			if held > mostTimesItsBytes*int64(stored) {
				t.Errorf("%d bytes are held for %d that are stored", held, stored)
			}
			if said := gaugeOf(t, registry, "sidecarset_catalog_bytes"); said < float64(held)/2 || said > float64(held)*2 {
				t.Errorf("the gauge says %.0f bytes, want about %d", said, held)
			}
			runtime.KeepAlive(informer)
		})
	}
}

// warmUp makes the libraries fill their caches of types, so that these are not measured.
func warmUp(t *testing.T) {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(storedText(t, 0, 1, 1, true)); err != nil {
		t.Fatal(err)
	}
	c := NewCatalog(nil, nil)
	c.sidecarSetChanged("warm", object, nil)
	c.rebuild(logr.Discard())
}

func gaugeOf(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func heapInUse() int64 {
	for range 3 { // unused interned strings are freed one cycle later
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestPackSidecarSetKeepsWhatDecidesAboutPods(t *testing.T) {
	text := storedText(t, 1, 1, 1, false)
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	annotations := object.GetAnnotations()
	annotations["kubectl.kubernetes.io/last-applied-configuration"], annotations["kept"] = string(text), "yes"
	object.SetAnnotations(annotations)
	for range 2 { // packing a second time changes nothing
		if _, err := PackSidecarSet(object); err != nil {
			t.Fatal(err)
		}
	}
	if got := object.GetAnnotations(); got["kept"] != "yes" || got["kubectl.kubernetes.io/last-applied-configuration"] != "" {
		t.Errorf("annotations are %v", got)
	}
	spec, packed := object.Object["spec"].(string)
	if !packed || !strings.Contains(spec, `"VARIABLE_1_0"`) {
		t.Errorf("spec is %v", object.Object["spec"])
	}
	copied := object.DeepCopy() // as readers of the cache get it
	if copied.Object["spec"] != spec {
		t.Error("a copy differs")
	}
}

// Without the bound, a rebuild of five seconds after a change of a thousand SidecarSets kept
// the next change waiting for twenty seconds.
func TestThePauseAfterARebuildIsBounded(t *testing.T) {
	for rebuild, want := range map[time.Duration]time.Duration{
		time.Microsecond:       5 * time.Millisecond,
		10 * time.Millisecond:  40 * time.Millisecond,
		200 * time.Millisecond: 800 * time.Millisecond,
		5 * time.Second:        time.Second,
	} {
		if got := pauseAfter(rebuild); got != want {
			t.Errorf("the pause after %v is %v, want %v", rebuild, got, want)
		}
	}
}
