package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/random"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/validation"
)

type object = map[string]any

// wantAccepted is how many SidecarSets of the generator have to pass validation
// before the test ends; triedAtMost keeps it from trying for ever.
const (
	wantAccepted = 500
	triedAtMost  = 20 * wantAccepted
)

// What validation accepts injects into a Pod that the API server accepts, unless
// a warning says that this one is too old for it. What validation refuses is
// counted only: some of it the API server would take.
func TestWhatValidationAcceptsTheAPIServerAccepts(t *testing.T) {
	const seed = 3
	g := random.New(seed)
	accepted, foretold, tried, lenient := 0, 0, 0, map[string]int{}
	for ; accepted < wantAccepted && tried < triedAtMost; tried++ {
		set := fixtures.Stored(asJSON(t, g.SidecarSet()))
		problems := validation.Create(typedSet(t, set), validation.Environment{Object: set}).ToAggregate()
		if problems == nil {
			accepted++
		} else if tried%10 != 0 {
			continue // refused ones are statistics: a sample will do
		}
		err := createWith(t, set)
		switch {
		case problems == nil && err != nil && warnedOfVersion(t, set):
			foretold++
		case problems == nil && err != nil:
			t.Errorf("accepted, yet its Pod is refused: %v\n%s", err, asText(t, set["spec"]))
		case problems != nil && err == nil:
			for _, problem := range problems.Errors() {
				lenient[problem.Error()]++
			}
		}
	}
	t.Logf("%d of %d SidecarSets were accepted; of %d of them a warning says that %s refuses Pods", accepted, tried, foretold, cluster.Version)
	for _, problem := range slices.Sorted(maps.Keys(lenient)) {
		t.Logf("refused here, perhaps not there (%d): %s", lenient[problem], problem)
	}
	if accepted < wantAccepted {
		t.Errorf("%d SidecarSets were accepted, want %d", accepted, wantAccepted)
	}
}

// warnedOfVersion says whether there are more warnings where the API server's
// version is known.
func warnedOfVersion(t *testing.T, set object) bool {
	t.Helper()
	typed := typedSet(t, set)
	return len(validation.Warnings(typed, validation.Environment{ServerMinor: cluster.Minor()})) > len(validation.Warnings(typed, validation.Environment{}))
}

// createWith asks the API server for a Pod with the sidecars, in a namespace
// whose Pods no webhook sees. Nothing is stored. A SidecarSet that does not
// compile or inject is an error as well.
func createWith(t *testing.T, set object) error {
	t.Helper()
	program, err := inject.Compile(set)
	if err != nil {
		return fmt.Errorf("compiling: %w", err)
	}
	p := pod(metav1.NamespaceSystem, "random", "app=web")
	p.Spec.ServiceAccountName = "default" // no admission plugin of this API server sets it
	app, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := inject.Compute(inject.Input{Pod: fixtures.View(t, app), Candidates: []inject.Candidate{{Current: program}}, Now: fixtures.Now})
	if err != nil {
		return fmt.Errorf("computing: %w", err)
	}
	u := &unstructured.Unstructured{Object: fixtures.Apply(t, plan, app)}
	u.SetAPIVersion("v1")
	u.SetKind("Pod")
	return api.Create(t.Context(), u, client.DryRunAll)
}

func typedSet(t *testing.T, set object) *appsv1beta1.SidecarSet {
	t.Helper()
	out := &appsv1beta1.SidecarSet{}
	if err := json.Unmarshal([]byte(asText(t, set)), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// asJSON gives values the types that a decoder of JSON gives them.
func asJSON(t *testing.T, value object) object {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(asText(t, value))); err != nil {
		t.Fatal(err)
	}
	return u.Object
}

func asText(t *testing.T, value any) string {
	t.Helper()
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
