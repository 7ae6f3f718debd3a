package explain

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
)

// Updater asks the leader's rules how running Pods can follow one SidecarSet.
type Updater struct {
	Compiled *inject.Compiled
	// Revision is compared with the revisions that History records.
	Revision *inplace.Revision
	History  revision.History

	spec map[string]any
}

// NewUpdater returns an Updater of a SidecarSet of the View.
func NewUpdater(w *clusterview.View, p *inject.Compiled, history revision.History) (*Updater, error) {
	spec, err := inject.SpecOf(w.Objects[p.Name()])
	if err != nil {
		return nil, err
	}
	differences, err := inplace.Differences(nil).With(history, spec, p.HashWithoutImage)
	return &Updater{p, inplace.RevisionOf(p).With(differences), history, spec}, err
}

// Recorded returns the newest ControllerRevision of the revision that a Pod records, nil if there is none.
func (u *Updater) Recorded(pod *corev1.Pod) *appsv1.ControllerRevision {
	hash := podstate.ParseHashes(pod.Annotations[appsv1beta1.AnnotationHash]).Hash(u.Compiled.Name())
	for _, r := range slices.Backward(u.History) {
		if hash != "" && r.Annotations[appsv1beta1.AnnotationHash] == hash {
			return r
		}
	}
	return nil
}

// Update is what the leader would write to a Pod. If only a new Pod can get the revision, fields
// are those because of which; without any, Message says why.
func (u *Updater) Update(pod *corev1.Pod, node func(name string) (inplace.Node, error), now time.Time) (update inplace.Update, fields []string, err error) {
	in := inplace.UpdateInput{Pod: pod, Compiled: u.Compiled, Revision: u.Revision, Now: now}
	recorded := u.Recorded(pod)
	if recorded != nil {
		in.Previous, _ = inject.CompileRevision(u.Compiled, recorded) // without it, every image counts as changed
	}
	update, err = inplace.UpdateInPlace(in)
	if v := update.Verdict; err == nil && v.Changed.Has(podstate.Native) && v.Reason == "" && pod.Spec.NodeName != "" && node != nil {
		if in.Node, err = node(pod.Spec.NodeName); err == nil {
			update, err = inplace.UpdateInPlace(in)
		}
	}
	if err == nil && update.Verdict.Reason == inplace.ImmutableFieldChanged && recorded != nil {
		if fields, err = inplace.Fixed(recorded.Data.Raw, u.spec); err == nil && len(fields) == 0 {
			update.Message = "the resize would remove a value, or change the QoS class of the Pod" // as in status.blockedPods
		}
	}
	return update, fields, err
}
