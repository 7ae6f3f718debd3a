package podstate

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
)

// Record is what the status of SidecarSets needs to know about one Pod. It takes some hundred
// bytes, and never more than about MaxRecordBytes; the Pod itself takes tens of thousands. It
// is immutable and may be shared. If no SidecarSet was injected into the Pod, it has neither
// Containers nor Injections.
type Record struct {
	UID       types.UID
	Namespace Namespace
	Name      string
	Labels    LabelSet

	// Order is what a rollout orders Pods by. If no SidecarSet was injected into the Pod, only
	// Created is known.
	Order Order
	// Facts say how the Pod may be updated in place.
	Facts inplace.Facts

	// Containers are the Pod's init containers and containers.
	Containers []Container
	// Injections has one element per name in the injected list, in name order.
	Injections []Injection
	// Removed are SidecarSets whose hash the Pod records and that are not in its
	// injected list: there are at most maxRemoved of them.
	Removed []Name

	update   *updateState // nil for Pods that were never updated in place
	progress []progress   // of the operator's own updates

	// Controller is the UID of the Pod's controller, zero if it has none.
	Controller Name

	// Active is false once the Pod is being deleted or has finished; such a Pod
	// counts nowhere.
	Active bool
	// Finished is true for a Pod that has succeeded or failed.
	Finished bool
	// Evicted is true for a Pod that is being deleted because it was evicted. Its Labels and
	// its Controller are known.
	Evicted bool
	// ByJob is true if the Pod's controller is a Job.
	ByJob bool
	// RunsToCompletion is true if the kubelet does not restart the Pod's containers
	// once they succeed, by spec.restartPolicy. The Pod does a task, whatever controls it.
	RunsToCompletion bool
	// Protected is true if an annotation of the Pod forbids to evict it.
	Protected bool
	// TooLarge is true for an active Pod whose record would take more than MaxRecordBytes. The
	// record then says only that the Pod exists.
	TooLarge bool
	// Ready is true for a running Pod whose Ready condition is true.
	Ready bool
	// RecordUnreadable is true if the Pod's record of updates in place cannot be
	// read. Nothing is known of them, and the Pod must not be written.
	RecordUnreadable bool
	// Reported is true if the kubelet has reported on as many containers as the
	// Pod has.
	Reported bool
	// Outwaited is true if containers that are ready do not show the images that another
	// operator gave them, and have had the time to. It is not certain what they run, and a
	// longer wait would not show it.
	Outwaited bool

	waitsUntil uint32 // when the Pod is Outwaited, in seconds; 0 if it does not wait
}

// Container is what is remembered of one container.
type Container struct {
	Name, Image Name
	Kind        inplace.Kind
	// Ready is what the kubelet reports of the container; false for plain init
	// containers.
	Ready bool
	// Trouble says why the container does not run.
	Trouble Trouble

	landed landing
}

// Injection is what a Pod records about one SidecarSet in its injected list.
type Injection struct {
	SidecarSet Name
	// Hash is the content hash that the Pod carries, zero if it records none.
	Hash Name
	// Revision names the ControllerRevision that the Pod was given, zero if it
	// records none.
	Revision Name
	// HashWithoutImage is the content hash without images, zero if the Pod records
	// none.
	HashWithoutImage Name
	// Upgradable is what the Pod's condition SidecarSetUpgradable says about the
	// SidecarSet.
	Upgradable Upgradable
	// Resize is how far a resize for the SidecarSet is. As long as it is not NoResize,
	// the Pod may have other resources than those of the content that it records.
	Resize inplace.ResizeState

	resizeAt uint32 // when it was recorded, in seconds
}

// landing reports whether a container runs the image that its spec asks for, as
// far as digests can tell.
type landing uint8

const (
	undecided landing = iota // tags, and IDs that no digest can be compared with
	landed
	notLanded
)

// FromPod makes the record of a Pod. It does not keep the Pod. Its cost is bounded, whatever
// the Pod's author has written into the Pod.
func FromPod(pod *corev1.Pod) *Record {
	r := &Record{
		UID:       pod.UID,
		Namespace: MakeNamespace(pod.Namespace),
		Name:      pod.Name,
		Finished:  pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
	}
	r.Active = pod.DeletionTimestamp == nil && !r.Finished
	if !r.Active {
		r.readEviction(pod)
		return r
	}
	if r.TooLarge = tooLarge(pod); r.TooLarge {
		return r
	}
	r.Labels = MakeLabelSet(pod.Labels)
	r.readOwner(pod)
	r.Facts = inplace.FactsOf(pod)
	r.Order.Created = createdAt(pod)
	r.Ready = inplace.IsAvailable(pod)
	hashes := ParseHashes(pod.Annotations[appsv1beta1.AnnotationHash])
	r.readInjections(pod, hashes)
	if len(r.Injections) == 0 {
		return r
	}
	r.Order = orderOf(pod)
	r.Reported = len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers)
	r.Containers = containers(pod)
	r.update = readUpdateState(pod)
	r.readMarks(pod, hashes)
	r.readWaits(pod, hashes)
	return r
}

// GetObjectMeta lets client-go's stores compute a record's key. The result
// holds namespace, name and UID only.
func (r *Record) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: r.Namespace.Value(), Name: r.Name, UID: r.UID}
}

// Injection returns what the Pod records about a SidecarSet in its injected list.
func (r *Record) Injection(sidecarSet Name) (Injection, bool) {
	for _, in := range r.Injections {
		if in.SidecarSet == sidecarSet {
			return in, true
		}
	}
	return Injection{}, false
}

// Container returns the container or init container of that name.
func (r *Record) Container(name Name) (Container, bool) {
	for _, c := range r.Containers {
		if c.Name == name {
			return c, true
		}
	}
	return Container{}, false
}

// Working returns the container that does the work of a hot-upgrade sidecar.
func (r *Record) Working(sidecar Name) (container Name, ok bool) {
	if r.update == nil {
		return 0, false
	}
	for _, w := range r.update.working {
		if w.sidecar == sidecar {
			return w.container, true
		}
	}
	return 0, false
}

// HotUpgraded reports whether a hot upgrade of a sidecar is not over: the container
// that works took over from the other one, which has not been given up yet.
func (r *Record) HotUpgraded(sidecar Name) bool {
	return r.update != nil && slices.ContainsFunc(r.update.working, func(w workingContainer) bool { return w.sidecar == sidecar && w.upgraded })
}

// Landed reports whether the kubelet runs the image that a container was given, as far as the
// status shows. If the SidecarSet has a Progress, the Progress decides: all containers of an
// update land at once.
//
// For others, and if the image is named by digest, the digests are compared,
// whatever registry they came from. If it is named by tag, the image ID must differ
// from the one that was recorded before the last in-place update. Plain init
// containers, and a name that is not a container of the Pod, have landed.
func (r *Record) Landed(sidecarSet, container Name) bool {
	if p := r.Progress(sidecarSet); p.State() != inplace.Unmarked {
		return p.Over()
	}
	for _, c := range r.Containers {
		if c.Name != container || c.Kind == inplace.Plain {
			continue
		}
		switch c.landed {
		case landed:
			return true
		case notLanded:
			return false
		}
		return r.update == nil || r.update.landed(sidecarSet, container)
	}
	return true
}

// maxRemoved bounds Record.Removed. No operator leaves such hashes behind.
const maxRemoved = 4

func (r *Record) readInjections(pod *corev1.Pod, hashes Hashes) {
	names := ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList])
	for _, record := range hashes.records {
		if _, listed := slices.BinarySearch(names, record.name); !listed && len(r.Removed) < maxRemoved {
			r.Removed = append(r.Removed, MakeName(record.name))
		}
	}
	if len(names) == 0 {
		return
	}
	others := ParseHashes(pod.Annotations[appsv1beta1.AnnotationHashWithoutImage])
	said := upgradableOf(pod)
	r.Injections = make([]Injection, len(names))
	for i, name := range names {
		r.Injections[i] = Injection{
			SidecarSet: MakeName(name), Hash: MakeName(hashes.Hash(name)), Revision: MakeName(hashes.Revision(name)),
			HashWithoutImage: MakeName(others.Hash(name)), Upgradable: said[name],
		}
	}
}

func containers(pod *corev1.Pod) []Container {
	all := make([]Container, 0, countContainers(pod))
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		kind := inplace.InitKindOf(c)
		var status *corev1.ContainerStatus
		if kind == inplace.Native {
			status = inplace.StatusOf(pod.Status.InitContainerStatuses, len(pod.Spec.InitContainers), c.Name)
		}
		all = append(all, newContainer(c, kind, status))
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all = append(all, newContainer(c, inplace.KindOf(pod, c), inplace.StatusOf(pod.Status.ContainerStatuses, len(pod.Spec.Containers), c.Name)))
	}
	return all
}

func newContainer(c *corev1.Container, kind inplace.Kind, status *corev1.ContainerStatus) Container {
	return Container{
		Name: MakeName(c.Name), Image: MakeName(c.Image), Kind: kind,
		Ready:   status != nil && status.Ready,
		Trouble: troubleOf(status),
		landed:  landingOf(c.Image, status),
	}
}

// landingOf compares digests, and only those: the name before a digest is that
// of the mirror it came from, or a short form. An ID without a digest says
// nothing about an image that has one.
func landingOf(image string, status *corev1.ContainerStatus) landing {
	want := imageDigest(image)
	switch {
	case want == "":
		return undecided
	case status == nil || status.ImageID == "":
		return notLanded
	}
	inID, inName := imageDigest(status.ImageID), imageDigest(status.Image)
	switch {
	case inID == want || inName == want:
		return landed
	case inID == "" && inName == "":
		return undecided
	}
	return notLanded
}

// ParseVersion reads a resourceVersion as a number, so that two of the same kind can be
// compared.
func ParseVersion(resourceVersion string) (uint64, error) {
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %q is not a number", resourceVersion)
	}
	return version, nil
}
