package inplace

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
)

// FieldManager is the name with which the operator writes Pods.
const FieldManager = "sidecarset-operator"

// UpdateInput is one Pod that has a SidecarSet, and what it is to get.
type UpdateInput struct {
	// Pod as it was read from the API server, not from a cache. It is not changed.
	Pod *corev1.Pod
	// Compiled is the current revision as it is injected, and Revision as Pods are compared with it.
	Compiled *inject.Compiled
	Revision *Revision
	// Previous is the revision that the Pod records, nil if it is not known. An image
	// that is the same in both is left as it is in the Pod: another webhook may have
	// rewritten it.
	Previous *inject.Compiled
	Node     Node
	// Was is how the Pod is, to be recorded.
	StateBefore podstate.StateBefore
	Now         time.Time
}

// Update is what brings a Pod to the current revision in place.
type Update struct {
	Verdict Verdict
	// Changes are the containers that get another image, in the order of the Pod,
	// init containers first.
	Changes []podstate.Change
	// Patch is a strategic merge patch with the Pod's resourceVersion as precondition, nil
	// if nothing is to be written. For the way Images it is a patch of the Pod: images and
	// annotations. For the way Resize it is one of the subresource resize. It is nil while
	// the kubelet carries out the resize; after that the way is Images.
	Patch []byte
	// Record is a patch of the Pod's annotations that has to be written before the
	// Pod is resized, nil if the Pod records all. The Patch is then for the Pod
	// that was read again.
	Record []byte
	// Message is what the kubelet says about a resize.
	Message string
}

// UpdateInPlace decides how one Pod can follow and, if it can be updated in place, what to
// write. The error is a *inject.MetadataError for a Pod whose annotations cannot be merged.
func UpdateInPlace(in UpdateInput) (Update, error) {
	u := newUpdate(in)
	u.upgradeHot()
	u.findChanges()
	var changed podstate.Kinds
	for _, c := range u.changes {
		changed = changed.With(c.Kind)
	}
	v := u.Revision.judge(u.pod, u.Node, changed)
	switch {
	case v.Moves:
		return Update{Verdict: v}, nil
	case v.Method == Resize || v.Reason.IsOfResize():
		u.resizes = true
		if v = u.planResize(v); v.Method != Images {
			return u.resize(v)
		}
	case v.Method != Images:
		return Update{Verdict: v}, nil
	}
	if err := u.writeRevision(); err != nil {
		return Update{}, err
	}
	return u.write(v)
}

// update is one run of UpdateInPlace.
type update struct {
	UpdateInput
	set     string
	changes []podstate.Change

	pod     *podstate.Summary
	hashes  podstate.Hashes
	entries podstate.InPlaceRecords
	before  podstate.Write // the records that the write continues with

	resizes bool // resources are part of the change
	plan    Resizing
	message string

	hot    []hotStep
	resets bool // only hot upgrades are ended
	out    podstate.AnnotationEdits
}

func newUpdate(in UpdateInput) *update {
	u := &update{UpdateInput: in, set: in.Compiled.Name(), pod: podstate.FromPod(in.Pod), out: podstate.AnnotationEdits{Has: in.Pod.Annotations}}
	u.hashes = podstate.ParseHashes(u.Pod.Annotations[appsv1beta1.AnnotationHash])
	u.entries, _ = podstate.InPlaceRecordsOf(u.Pod) // if they are unreadable, the record says so
	u.before = podstate.Write{Pod: u.Pod, Hash: u.Compiled.Hash, StateBefore: u.StateBefore, Previous: u.entries.Of(u.set, u.hashes), Now: u.Now}
	if z, ok := u.entries.Resizes[u.set]; ok {
		u.before.Resize = &z
	}
	return u
}

// findChanges compares the images of the Pod with the images of the compiled SidecarSet.
func (u *update) findChanges() {
	spec := &u.Compiled.Set.Spec
	for i := range u.Pod.Spec.InitContainers {
		c := &u.Pod.Spec.InitContainers[i]
		u.compare(c, podstate.InitKindOf(c), findSidecar(spec.InitContainers, c.Name))
	}
	for i := range u.Pod.Spec.Containers {
		c := &u.Pod.Spec.Containers[i]
		u.compare(c, podstate.KindOf(u.Pod, c), findSidecar(spec.Containers, c.Name))
	}
}

func (u *update) compare(c *corev1.Container, kind podstate.Kind, now *appsv1beta1.SidecarContainer) {
	change := podstate.Change{Container: c.Name, Kind: kind, From: c.Image}
	switch step := slices.IndexFunc(u.hot, func(s hotStep) bool { return s.Container == c.Name }); {
	case step >= 0:
		change.To = u.hot[step].Image
	case u.resets || now == nil || now.Image == c.Image || u.imageBefore(c.Name) == now.Image:
		return
	default:
		change.To = now.Image
	}
	u.changes = append(u.changes, change)
}

// imageBefore is the image that the previous revision has for a sidecar, "" if that is
// not known. No two sidecars of a SidecarSet have the same name.
func (u *update) imageBefore(name string) string {
	if u.Previous == nil {
		return ""
	}
	spec := &u.Previous.Set.Spec
	if c := cmp.Or(findSidecar(spec.InitContainers, name), findSidecar(spec.Containers, name)); c != nil {
		return c.Image
	}
	return ""
}

func findSidecar(sidecars []appsv1beta1.SidecarContainer, name string) *appsv1beta1.SidecarContainer {
	for i := range sidecars {
		if sidecars[i].Name == name {
			return &sidecars[i]
		}
	}
	return nil
}

// writeRevision adds the annotations that say which revision the Pod has.
func (u *update) writeRevision() error {
	if err := u.Compiled.PatchAnnotations(u.out.Get, u.out.Set); err != nil {
		return err
	}
	u.out.Set(appsv1beta1.AnnotationHash, u.hashes.With(podstate.HashRecord{
		UpdateTimestamp: u.Now.UTC().Truncate(time.Second), Hash: u.Compiled.Hash, SidecarSetName: u.set,
		SidecarList: u.Compiled.SidecarList, ControllerRevision: u.Compiled.Revision(),
	}).String())
	if others := podstate.ParseHashes(u.Pod.Annotations[appsv1beta1.AnnotationHashWithoutImage]); others.Has(u.set) {
		if u.resizes { // else only a legacy form changes
			others = others.With(podstate.HashRecord{
				UpdateTimestamp: u.Now.UTC().Truncate(time.Second), Hash: u.Compiled.HashWithoutImage, SidecarSetName: u.set, SidecarList: u.Compiled.SidecarList,
			})
		}
		u.out.Set(appsv1beta1.AnnotationHashWithoutImage, others.String())
	}
	return nil
}

// write adds the records of the changes and renders everything.
func (u *update) write(v Verdict) (Update, error) {
	u.before.Changes = u.changes
	entry := podstate.NewInPlaceRecord(u.before)
	ids := map[string]string{}
	for i := range u.changes {
		if c := &u.changes[i]; c.Kind != podstate.Plain {
			ids[c.Container] = podstate.ImageID(u.Pod, c.Container)
		}
	}
	u.out.Set(appsv1beta1.AnnotationInPlaceUpdateState, podstate.RecordUpdate(u.out.Has[appsv1beta1.AnnotationInPlaceUpdateState], podstate.UpdateRecord{
		SidecarSet: u.set, Revision: u.Compiled.Hash, At: entry.At, ImageIDs: ids,
	}))
	listed := podstate.ParseInjectedList(u.out.Has[appsv1beta1.AnnotationInjectedList])
	entries := u.entries.Keep(func(set string) bool { return slices.Contains(listed, set) }).With(u.set, entry)
	if u.resets && u.before.Resize != nil {
		entries = entries.WithResize(u.set, *u.before.Resize)
	}
	u.out.Set(appsv1beta1.AnnotationInPlace, entries.Format(u.Pod.UID))
	u.writeHot()
	patch, err := u.patch(u.out.Planned)
	return Update{Verdict: v, Changes: u.changes, Patch: patch}, err
}

type (
	podPatch struct {
		Metadata metadataPatch `json:"metadata"`
		Spec     *specPatch    `json:"spec,omitempty"`
	}
	metadataPatch struct {
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	}
	// specPatch lists containers in the order of the Pod: the API server must not
	// move any.
	specPatch struct {
		InitContainers []imagePatch `json:"initContainers,omitempty"`
		Containers     []imagePatch `json:"containers,omitempty"`
	}
	imagePatch struct {
		Name  string `json:"name"`
		Image string `json:"image"`
	}
)

func (u *update) patch(annotations map[string]string) ([]byte, error) {
	p := podPatch{Metadata: metadataPatch{u.Pod.ResourceVersion, annotations}}
	if len(u.changes) > 0 {
		p.Spec = &specPatch{}
	}
	for i := range u.changes {
		c := &u.changes[i]
		list := &p.Spec.Containers
		if c.Kind.Init() {
			list = &p.Spec.InitContainers
		}
		*list = append(*list, imagePatch{c.Container, c.To})
	}
	return json.Marshal(p)
}
