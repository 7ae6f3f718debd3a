package bench

import (
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
)

// NewOurs returns the operator's own handler over SidecarSets that have been
// compiled as its Catalog does.
func NewOurs(sets []map[string]any, now time.Time) http.Handler {
	catalog := BuildCatalog(CompileAll(sets))
	return pods.NewInjector(pods.Options{
		Snapshot:           func() *match.Snapshot { return catalog },
		ExcludedNamespaces: []string{"kube-system", "sidecarset-system"},
		Clock:              clocktesting.NewFakePassiveClock(now),
	})
}

// CompileAll compiles SidecarSets.
func CompileAll(sets []map[string]any) []*inject.Program {
	programs := make([]*inject.Program, 0, len(sets))
	for _, set := range sets {
		program, err := inject.Compile(set)
		if err != nil {
			panic(fmt.Sprintf("compiling a fixture: %v", err))
		}
		programs = append(programs, program)
	}
	return programs
}

// BuildCatalog makes a snapshot in which the fixture Pods' namespace is known.
func BuildCatalog(programs []*inject.Program) *match.Snapshot {
	return match.Build(programs, map[string]labels.Set{Namespace: {"kubernetes.io/metadata.name": Namespace}})
}
