package snapshot

import (
	"maps"
	"sync"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/revision"
)

// compiledRevision is a ControllerRevision that was compiled for a SidecarSet.
type compiledRevision struct {
	current         *inject.Compiled
	uid             types.UID
	resourceVersion string
	compiled        *inject.Compiled // nil if it cannot be used
}

func newControllerRevision() *appsv1.ControllerRevision {
	object := &appsv1.ControllerRevision{}
	object.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ControllerRevision"))
	return object
}

func (c *Store) revisionChanged(name string, object, _ *appsv1.ControllerRevision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending.revisions[name] = object
	Signal(c.changed)
}

// applyRevisions compiles the recorded revisions that SidecarSets inject, each once. It
// reports whether any of them differs from before.
func (c *Store) applyRevisions(logger logr.Logger, changes map[string]*appsv1.ControllerRevision, setsDiffer bool) bool {
	for name, object := range changes {
		if object == nil {
			delete(c.revisions, name)
		} else {
			c.revisions[name] = object
		}
	}
	if len(changes) == 0 && !setsDiffer {
		return false
	}
	bySet := sync.OnceValue(c.revisionsBySet) // most SidecarSets refer to none
	next := map[string]compiledRevision{}
	for name, set := range c.compiled {
		if set.compiled == nil {
			continue
		}
		ref, refers := set.compiled.Refers()
		if !refers {
			continue
		}
		if chosen := revision.NewHistory(bySet()[name], revision.Owner{Name: name, UID: set.compiled.Set.UID}).Choose(ref); chosen != nil {
			next[name] = c.compileRevision(logger, set.compiled, chosen)
		}
	}
	differ := !maps.Equal(c.history, next)
	c.history = next
	return differ
}

// revisionsBySet are the known ControllerRevisions, by SidecarSet.
func (c *Store) revisionsBySet() map[string][]*appsv1.ControllerRevision {
	bySet := map[string][]*appsv1.ControllerRevision{}
	for _, r := range c.revisions {
		set := r.Labels[appsv1beta1.LabelSidecarSetName]
		bySet[set] = append(bySet[set], r)
	}
	return bySet
}

func (c *Store) compileRevision(logger logr.Logger, current *inject.Compiled, r *appsv1.ControllerRevision) compiledRevision {
	known, ok := c.history[current.Name()]
	if ok && known.current == current && known.uid == r.UID && known.resourceVersion == r.ResourceVersion {
		return known
	}
	next := compiledRevision{current: current, uid: r.UID, resourceVersion: r.ResourceVersion}
	var err error
	if next.compiled, err = inject.CompileRevision(current, r); err != nil {
		logger.Error(err, "ControllerRevision cannot be used as it is stored", "SidecarSet", current.Name(), "ControllerRevision", r.Name)
	}
	return next
}
