package integration

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
)

// conditionRules watches the SidecarSets of all tests, and checks each status that
// the operator writes against the rules for conditions.
type conditionRules struct {
	mu       sync.Mutex
	history  map[types.UID]*fixtures.ConditionHistory
	statuses int
	broken   []string
}

// follow checks each status until ctx ends.
func (r *conditionRules) follow(ctx context.Context, c client.WithWatch) error {
	r.history = map[types.UID]*fixtures.ConditionHistory{}
	begin := func() (watch.Interface, error) { return c.Watch(ctx, &appsv1beta1.SidecarSetList{}) }
	w, err := begin()
	if err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			for e := range w.ResultChan() {
				if set, ok := e.Object.(*appsv1beta1.SidecarSet); ok {
					r.check(e.Type, set)
				}
			}
			r.mu.Lock()
			r.history = map[types.UID]*fixtures.ConditionHistory{} // the watch misses what happens before the next one
			r.mu.Unlock()
			for w, err = begin(); err != nil && ctx.Err() == nil; w, err = begin() {
				<-time.After(100 * time.Millisecond)
			}
		}
	}()
	return nil
}

func (r *conditionRules) check(event watch.EventType, set *appsv1beta1.SidecarSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if event == watch.Deleted {
		delete(r.history, set.UID)
		return
	}
	if r.history[set.UID] == nil {
		r.history[set.UID] = &fixtures.ConditionHistory{}
	}
	r.statuses++
	for _, problem := range r.history[set.UID].Add(set.Generation, set.Status, time.Now()) {
		r.broken = append(r.broken, fmt.Sprintf("SidecarSet %s: %s", set.Name, problem))
	}
}

// result says which rules were broken, and whether there was anything to check.
func (r *conditionRules) result() (broken []string, statuses int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.broken, r.statuses
}
