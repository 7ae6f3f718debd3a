package inject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// UpdateInput is one Pod that carries a SidecarSet, and what it is to get.
type UpdateInput struct {
	// Pod as it was read from the API server, not from a cache. It is not changed.
	Pod *corev1.Pod
	// Program is the current content.
	Program *Program
	// Previous is the content that the Pod records, nil if it is not known. An image
	// that is the same in both is left as it is in the Pod: another webhook may have
	// rewritten it.
	Previous *Program
	// Difference is what differs between the content that the Pod records and the current
	// one; nil if it is not known.
	Difference *inplace.Difference
	Node       inplace.Node
	// Over: the Pod has been back from its last update in place for so long that it is not
	// in flight, whatever its status says now.
	Over bool
	Now  time.Time
}

// Update is what brings a Pod to the current content in place.
type Update struct {
	Verdict inplace.Verdict
	// Changes are the containers that get another image, in the order of the Pod,
	// init containers first.
	Changes []inplace.Change
	Mark    inplace.Mark
	// Patch is a strategic merge patch with the Pod's resourceVersion as precondition, nil
	// if nothing is to be written. For the way Images it is a patch of the Pod: images and
	// annotations. For the way Resize it is one of the subresource resize. It is nil while
	// the kubelet carries out the resize; after that the way is Images.
	Patch []byte
	// Record is a patch of the Pod's annotations that has to be written before the
	// Pod is resized, nil if the Pod records all. The Patch is then that of the Pod
	// that has been read again.
	Record []byte
	// Message is what the kubelet says about a resize.
	Message string
}

// MissingError says that a Pod lacks a container of a SidecarSet that it carries.
// Only a new Pod can have it.
type MissingError struct{ SidecarSet, Container string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("the Pod carries SidecarSet %q and has no container %q", e.SidecarSet, e.Container)
}

// UpdateInPlace decides how one Pod can follow and, if other images bring it to the
// current content, what to write. The error is a *MissingError, or a
// *MetadataError for a Pod whose annotations cannot be merged; it is about this
// Pod only.
func UpdateInPlace(in UpdateInput) (Update, error) {
	u := newUpdate(in)
	u.upgradeHot()
	u.findChanges()
	verdict := u.judge()
	switch verdict.Way {
	case inplace.Images:
	case inplace.Resize:
		return u.resize(verdict)
	default:
		return Update{Verdict: verdict, Message: u.message}, nil
	}
	if err := u.missing(); err != nil {
		return Update{}, err
	}
	if err := u.writeContent(); err != nil {
		return Update{}, err
	}
	return u.write(verdict)
}

// update is one run of UpdateInPlace.
type update struct {
	UpdateInput
	set     string
	changes []inplace.Change

	record     *podstate.Record
	hashes     podstate.Hashes
	marks      inplace.Marks
	unreadable bool
	previous   *inplace.Mark

	sizes   inplace.Sizes // of a resize that is under way
	resizes bool          // resources are part of the change
	plan    inplace.Resizing
	message string

	hot    []hotStep
	resets bool        // only hot upgrades are ended
	out    computation // its annotations are written to the Pod
}

func newUpdate(in UpdateInput) *update {
	u := &update{UpdateInput: in, set: in.Program.Name(), record: podstate.FromPod(in.Pod).At(in.Now)}
	u.hashes = podstate.ParseHashes(u.Pod.Annotations[appsv1beta1.AnnotationHash])
	marks, err := inplace.MarksOf(u.Pod)
	u.marks, u.unreadable = marks, err != nil
	u.previous = podstate.MarkOf(u.marks, u.hashes, u.set)
	u.sizes, u.resizes = u.marks.Resizes[u.set]
	u.out = computation{pod: &PodView{Annotations: u.Pod.Annotations}}
	return u
}

func (u *update) judge() inplace.Verdict {
	injection, carries := u.record.Injection(podstate.MakeName(u.set))
	if !u.record.Active || !carries {
		return inplace.Verdict{Way: inplace.LeaveAlone}
	}
	q := inplace.Question{
		Facts: inplace.FactsOf(u.Pod), Node: u.Node, RecordUnreadable: u.unreadable,
		SameHash:         injection.Hash == podstate.MakeName(u.Program.Hash),
		SameWithoutImage: injection.HashWithoutImage == podstate.MakeName(u.Program.HashWithoutImage),
		RevisionUnknown:  injection.HashWithoutImage == 0,
		Difference:       u.Difference,
		Resizing:         u.resizes,
	}
	for _, c := range u.changes {
		q.Changed = q.Changed.With(c.Kind)
	}
	verdict := inplace.Judge(q)
	if verdict.Way != inplace.Resize {
		return verdict
	}
	u.resizes = true
	if q.SameHash || q.SameWithoutImage {
		return u.judgeResources(nil)
	}
	return u.judgeResources(u.Difference.Resources)
}

// settled reports whether the kubelet has acted on earlier changes of other programs. The
// earlier changes of the operator are in its record.
func (u *update) settled() bool {
	return u.previous != nil || !slices.ContainsFunc(u.changes, func(c inplace.Change) bool {
		return !u.record.Landed(podstate.MakeName(u.set), podstate.MakeName(c.Container))
	})
}

// findChanges compares the images of the Pod with those of the Program.
func (u *update) findChanges() {
	spec := &u.Program.Set.Spec
	for i := range u.Pod.Spec.InitContainers {
		c := &u.Pod.Spec.InitContainers[i]
		u.compare(c, inplace.InitKindOf(c), findSidecar(spec.InitContainers, c.Name))
	}
	for i := range u.Pod.Spec.Containers {
		c := &u.Pod.Spec.Containers[i]
		u.compare(c, inplace.KindOf(u.Pod, c), findSidecar(spec.Containers, c.Name))
	}
}

// missing looks for a sidecar that the Pod lacks. Plain init containers do not
// count: they may have been added to the SidecarSet since, and would not run.
func (u *update) missing() error {
	spec := &u.Program.Set.Spec
	for i := range spec.Containers {
		for _, name := range spec.Containers[i].PodContainerNames() {
			if inplace.Find(u.Pod.Spec.Containers, name) == nil {
				return &MissingError{u.set, name}
			}
		}
	}
	for i := range spec.InitContainers {
		for _, name := range spec.InitContainers[i].PodInitContainerNames() {
			if spec.InitContainers[i].IsNative() && inplace.Find(u.Pod.Spec.InitContainers, name) == nil {
				return &MissingError{u.set, name}
			}
		}
	}
	return nil
}

func (u *update) compare(c *corev1.Container, kind inplace.Kind, now *appsv1beta1.SidecarContainer) {
	change := inplace.Change{Container: c.Name, Kind: kind, From: c.Image}
	switch step := slices.IndexFunc(u.hot, func(s hotStep) bool { return s.Container == c.Name }); {
	case step >= 0:
		change.To = u.hot[step].Image
	case u.resets || now == nil || now.Image == c.Image || u.before(c.Name) == now.Image:
		return
	default:
		change.To = now.Image
	}
	u.changes = append(u.changes, change)
}

// before is the image that the previous content has for a sidecar, "" if that is
// not known. No two sidecars of a SidecarSet have the same name.
func (u *update) before(name string) string {
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

// writeContent adds the annotations that say which content the Pod has.
func (u *update) writeContent() error {
	for _, rule := range u.Program.metadata {
		if err := u.out.patchAnnotations(u.set, rule); err != nil {
			return err
		}
	}
	u.out.annotate(appsv1beta1.AnnotationHash, u.hashes.With(podstate.HashRecord{
		UpdateTimestamp: u.Now.UTC().Truncate(time.Second), Hash: u.Program.Hash, SidecarSetName: u.set,
		SidecarList: u.Program.SidecarList, ControllerRevision: u.Program.recordedAs,
	}).String())
	if others := podstate.ParseHashes(u.Pod.Annotations[appsv1beta1.AnnotationHashWithoutImage]); others.Has(u.set) {
		if u.resizes { // else only a legacy form changes
			others = others.With(podstate.HashRecord{
				UpdateTimestamp: u.Now.UTC().Truncate(time.Second), Hash: u.Program.HashWithoutImage, SidecarSetName: u.set, SidecarList: u.Program.SidecarList,
			})
		}
		u.out.annotate(appsv1beta1.AnnotationHashWithoutImage, others.String())
	}
	return nil
}

// write adds the records of the changes and renders everything.
func (u *update) write(verdict inplace.Verdict) (Update, error) {
	mark := inplace.NewMark(inplace.Write{
		Pod: u.Pod, Previous: u.previous, Changes: u.changes, Uncertain: !u.settled(), Over: u.Over, Now: u.Now,
	})
	has := u.Pod.Annotations
	u.out.annotate(appsv1beta1.AnnotationInPlaceUpdateState, podstate.RecordUpdate(has[appsv1beta1.AnnotationInPlaceUpdateState], podstate.UpdateRecord{
		SidecarSet: u.set, Revision: u.Program.Hash, At: mark.At, ImageIDs: u.imageIDs(),
	}))
	listed := podstate.ParseInjectedList(has[appsv1beta1.AnnotationInjectedList])
	marks := u.marks.Keep(func(set string) bool { return slices.Contains(listed, set) }).With(u.set, mark).WithoutSizes(u.set)
	u.out.annotate(appsv1beta1.AnnotationInPlace, marks.Format(u.Pod.UID))
	u.writeHot()
	patch, err := u.patch(u.out.plan.Annotations)
	return Update{Verdict: verdict, Changes: u.changes, Mark: mark, Patch: patch}, err
}

// imageIDs returns the image IDs that OpenKruise compares later to find that a container
// runs another image.
func (u *update) imageIDs() []podstate.ContainerImageID {
	var ids []podstate.ContainerImageID
	for i := range u.changes {
		if c := &u.changes[i]; c.Kind != inplace.Plain {
			ids = append(ids, podstate.ContainerImageID{Container: c.Container, ImageID: inplace.ImageID(u.Pod, c.Container)})
		}
	}
	return ids
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
