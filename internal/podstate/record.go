package podstate

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
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
	Facts Facts

	// Containers are the Pod's init containers and containers.
	Containers []Container
	// Injections has one element per name in the injected list, in name order.
	Injections []Injection
	// Removed are SidecarSets whose hash the Pod records and that are not in its
	// injected list: there are at most maxRemoved of them.
	Removed []Name

	update *updateState // nil for Pods that were never updated in place
	writes []write      // of the operator's own

	// Controller is the UID of the Pod's controller, zero if it has none.
	Controller Name

	// ResizeMessage is what the kubelet says about a resize that is under way, cut off after
	// maxResizeMessage bytes.
	ResizeMessage string
	// Grace is the termination grace period in seconds, if a SidecarSet was injected.
	Grace uint32

	// Active is false once the Pod is being deleted or has finished; such a Pod
	// counts nowhere.
	Active bool
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

	waitsUntil uint32 // see Outwaited, in seconds; 0 if the Pod does not wait
}

// Container is what is remembered of one container.
type Container struct {
	Name, Image Name
	Kind        Kind
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
	// ResizeTo is the hash without images of the content whose resources the Pod gets, zero
	// if no resize for the SidecarSet is under way. As long as one is, the Pod may have other
	// resources than those of the content that it records.
	ResizeTo Name
	// ResizeBefore is that of an earlier resize, whose resources the Pod may still have.
	ResizeBefore Name

	resize ResizeState
}

// FromPod makes the record of a Pod. It does not keep the Pod. Its cost is bounded, whatever
// the Pod's author has written into the Pod.
func FromPod(pod *corev1.Pod) *Record {
	r := &Record{UID: pod.UID, Namespace: MakeNamespace(pod.Namespace), Name: pod.Name}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if r.Active = pod.DeletionTimestamp == nil && !finished; !r.Active {
		return r
	}
	if r.TooLarge = tooLarge(pod); r.TooLarge {
		return r
	}
	r.Labels = MakeLabelSet(pod.Labels)
	r.readOwner(pod)
	r.Facts = FactsOf(pod)
	r.Order.Created = createdAt(pod)
	r.Ready = IsAvailable(pod)
	hashes := ParseHashes(pod.Annotations[appsv1beta1.AnnotationHash])
	r.readInjections(pod, hashes)
	if len(r.Injections) == 0 {
		return r
	}
	r.Order = orderOf(pod)
	r.Grace = uint32(min(GraceSeconds(pod), math.MaxUint32))
	r.Reported = len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers)
	r.Containers = containers(pod)
	r.update = readUpdateState(pod)
	r.readEntries(pod, hashes)
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

// Idles reports whether the annotations say that one container of a hot-upgrade sidecar idles:
// the other one has not taken over from it, or it has been given up.
func (r *Record) Idles(sidecar Name) bool {
	return r.update != nil && slices.ContainsFunc(r.update.working, func(w workingContainer) bool { return w.sidecar == sidecar && w.alone })
}

// Landed reports whether the kubelet runs the image that a container was given, as far as the
// status shows. If the operator has updated the Pod for the SidecarSet, its record decides: all
// containers of an update land at once.
//
// For others, and if the image is named by digest, the digests are compared,
// whatever registry they came from. If it is named by tag, the image ID must differ
// from the one that was recorded before the last in-place update. Plain init
// containers, and a name that is not a container of the Pod, have landed.
func (r *Record) Landed(sidecarSet, container Name, now int64) bool {
	if w := r.entry(sidecarSet); w.At != 0 {
		return w.Back(now)
	}
	return r.landed(sidecarSet, container)
}

// landed is Landed for a Pod that the operator has not updated for the SidecarSet.
func (r *Record) landed(sidecarSet, container Name) bool {
	for _, c := range r.Containers {
		if c.Name != container || c.Kind == Plain {
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
		kind := InitKindOf(c)
		var status *corev1.ContainerStatus
		if kind == Native {
			status = StatusOf(pod.Status.InitContainerStatuses, len(pod.Spec.InitContainers), c.Name)
		}
		all = append(all, newContainer(c, kind, status))
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all = append(all, newContainer(c, KindOf(pod, c), StatusOf(pod.Status.ContainerStatuses, len(pod.Spec.Containers), c.Name)))
	}
	return all
}

func newContainer(c *corev1.Container, kind Kind, status *corev1.ContainerStatus) Container {
	return Container{
		Name: MakeName(c.Name), Image: MakeName(c.Image), Kind: kind,
		Ready:   status != nil && status.Ready,
		Trouble: troubleOf(status),
		landed:  landingOf(c.Image, status),
	}
}

// write is what the Pod says about one write of the operator.
type write struct {
	set    Name
	resize bool
	Written
}

// Written returns what the Pod says about the last write of the operator for a SidecarSet. It is
// zero for a Pod that was not updated, that another operator updated since, or whose record is
// unreadable. A resize that is under way comes before the update that was made earlier, unless
// the Pod is not back from the latter and the kubelet has not begun the resize.
func (r *Record) Written(sidecarSet Name) Written {
	entry := r.entry(sidecarSet)
	for i := range r.writes {
		w := &r.writes[i]
		if w.set == sidecarSet && w.resize && (w.Disturbed || entry.At == 0 || entry.BackAt != 0) {
			return w.Written
		}
	}
	return entry
}

// entry is Written without regard to a resize.
func (r *Record) entry(sidecarSet Name) Written {
	for i := range r.writes {
		if w := &r.writes[i]; w.set == sidecarSet && !w.resize {
			return w.Written
		}
	}
	return Written{}
}

// Resize returns how far a resize for a SidecarSet is.
func (r *Record) Resize(sidecarSet Name, now int64) ResizeState {
	for i := range r.writes {
		if w := &r.writes[i]; w.set == sidecarSet && w.resize {
			in, _ := r.Injection(sidecarSet)
			if in.resize == ResizeMoving && now >= w.silentAt() {
				return ResizeUnanswered
			}
			return in.resize
		}
	}
	return NoResize
}

// silentAt is when a resize that the kubelet has not done counts as unanswered.
func (w *write) silentAt() int64 { return int64(w.At) + int64(resizeSilence/time.Second) }

// Waits reports whether a container waits for the kubelet to act on an earlier image change
// that the operator has no record of. A container that is not ready never waits, so that a bad
// image can be replaced.
func (r *Record) Waits(sidecarSet, container Name, now int64) bool {
	return !r.Outwaited(now) && r.waits(sidecarSet, container)
}

func (r *Record) waits(sidecarSet, container Name) bool {
	c, ok := r.Container(container)
	return ok && c.Ready && r.entry(sidecarSet).At == 0 && !r.landed(sidecarSet, container)
}

// Outwaited reports whether containers that are ready do not show the images that another
// operator gave them, and have had the time to. It is not certain what they run, and a longer
// wait would not show it: the kubelet may run the new image and report it by another name.
func (r *Record) Outwaited(now int64) bool { return r.waitsUntil != 0 && now >= int64(r.waitsUntil) }

// UpdatedElsewhere reports whether another operator made the last update in place for
// a SidecarSet: there is a note of one, and no record of ours.
func (r *Record) UpdatedElsewhere(sidecarSet Name) bool {
	return r.update != nil && slices.Contains(r.update.sets, sidecarSet) && r.entry(sidecarSet).At == 0
}

// ChangesAt returns the next time after now at which an answer about the record changes without
// an event; 0 if none will.
func (r *Record) ChangesAt(now int64) (next int64) {
	note := func(at int64) {
		if at > now && (next == 0 || at < next) {
			next = at
		}
	}
	for i := range r.writes {
		w := &r.writes[i]
		note(w.Changes(now))
		if w.resize && r.Resize(w.set, now) == ResizeMoving {
			note(w.silentAt())
		}
	}
	note(int64(r.waitsUntil))
	return next
}

// elsewherePatience is how long the kubelet may take for an update that another operator
// made, apart from the grace periods of the containers.
const elsewherePatience = 5 * time.Minute

// readWaits sets the time until which the Pod may wait for updates that another operator made.
// That time counts from the last update in the hash record, or from the Pod's creation if that
// is later.
func (r *Record) readWaits(pod *corev1.Pod, hashes Hashes) {
	mayWait := func(c Container) bool { return c.Ready && c.landed == notLanded }
	if (r.update == nil || !r.update.unreadable && len(r.update.waiting) == 0) && !slices.ContainsFunc(r.Containers, mayWait) {
		return
	}
	for _, name := range ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList]) {
		set, waiting := MakeName(name), int64(0)
		for _, c := range r.Containers {
			if r.waits(set, c.Name) {
				waiting++
			}
		}
		if waiting > 0 {
			from := max(hashes.UpdatedAt(name).Unix(), pod.CreationTimestamp.Unix())
			until := from + waiting*GraceSeconds(pod) + int64(elsewherePatience/time.Second)
			r.waitsUntil = max(r.waitsUntil, uint32(min(max(until, 1), math.MaxUint32)))
		}
	}
}

const maxResizeMessage = 200

// readEntries keeps what is written about SidecarSets in the injected list only.
func (r *Record) readEntries(pod *corev1.Pod, hashes Hashes) {
	entries, err := EntriesOf(pod)
	r.RecordUnreadable = err != nil
	for set := range entries.Sets {
		name := MakeName(set)
		if _, injected := r.Injection(name); !injected {
			continue
		}
		if e := entries.Of(set, hashes); e != nil {
			r.writes = append(r.writes, write{name, false, e.Observe(pod)})
		}
	}
	for set, z := range entries.Resizes {
		name := MakeName(set)
		if i := slices.IndexFunc(r.Injections, func(in Injection) bool { return in.SidecarSet == name }); i >= 0 {
			in := &r.Injections[i]
			in.ResizeTo = max(MakeName(z.Hash), 1) // without a hash it is a content that is not known
			in.ResizeBefore = MakeName(z.Before)
			var message string
			if in.resize, message = z.Observe(pod); in.resize != ResizeDone {
				r.ResizeMessage = strings.ToValidUTF8(message[:min(len(message), maxResizeMessage)], "")
			}
			r.writes = append(r.writes, write{name, true, z.written(pod)})
		}
	}
	r.writes = slices.Clip(r.writes)
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
