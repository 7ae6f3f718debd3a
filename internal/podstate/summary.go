package podstate

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/text"
)

// Summary is what the status of SidecarSets needs to know about one Pod. It takes some hundred
// bytes, and never more than about MaxSummaryBytes; the Pod itself takes tens of thousands. It
// is immutable and may be shared. If no SidecarSet was injected into the Pod, it has neither
// Containers nor Injections.
type Summary struct {
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

	working []workingContainer // of hot-upgrade sidecars
	writes  []write            // of the operator's own

	// Controller is the UID of the Pod's controller, zero if it has none, and Node the name of its
	// node, zero if it has none yet.
	Controller, Node Name
	// Since is when the condition Ready last changed, in seconds; 0 if the Pod does not say.
	Since uint32

	// ResizeMessage is what the kubelet says about a resize that is under way, cut off after
	// maxResizeMessage bytes.
	ResizeMessage string
	// Grace is the termination grace period in seconds, if a SidecarSet was injected.
	Grace uint32

	// Active is false once the Pod is being deleted or has finished; such a Pod
	// counts nowhere. Succeeded says that it has done its task, and Failed that it has ended
	// otherwise: it was evicted, for example. A Pod without a task never succeeds: the phase of one
	// that was evicted is Succeeded, without a reason, if all of its programs exited with 0.
	Active, Succeeded, Failed bool
	// RunsToCompletion is true if the kubelet does not restart the Pod's containers
	// once they succeed, by spec.restartPolicy. The Pod does a task, whatever controls it.
	RunsToCompletion bool
	// TooLarge is true for an active Pod whose Summary would take more than MaxSummaryBytes. The
	// Summary then says only that the Pod exists.
	TooLarge bool
	// Ready is true for a running Pod whose Ready condition is true.
	Ready bool
	// RecordUnreadable is true if the Pod's record of updates in place cannot be
	// read. Nothing is known of them, and the Pod must not be written.
	RecordUnreadable bool
	// Reported is true if the kubelet has reported on as many containers as the
	// Pod has.
	Reported bool
}

// Container is what is remembered of one container.
type Container struct {
	Name, Image Name
	Kind        Kind
	// Ready is what the kubelet reports of the container; false for plain init
	// containers.
	Ready bool
	// Old: the kubelet has not acted on the operator's last change of the container.
	Old bool
	// Trouble says why the container does not run.
	Trouble Trouble
}

// Injection is what a Pod records about one SidecarSet in its injected list.
type Injection struct {
	SidecarSet Name
	// Hash is the hash of the revision that the Pod has, zero if it records none.
	Hash Name
	// Revision names the ControllerRevision that the Pod was given, zero if it
	// records none.
	Revision Name
	// HashWithoutImage is the revision's hash without images, zero if the Pod records
	// none.
	HashWithoutImage Name
	// Upgradable is what the Pod's condition SidecarSetUpgradable says about the
	// SidecarSet.
	Upgradable Upgradable
	// ResizeTo is the hash without images of the revision whose resources the Pod gets, zero
	// if no resize for the SidecarSet is under way. As long as one is, the Pod may have other
	// resources than those of the revision that it records.
	ResizeTo Name
	// ResizeBefore is that of an earlier resize, whose resources the Pod may still have.
	ResizeBefore Name

	resize ResizeState
}

// FromPod makes the Summary of a Pod. It does not keep the Pod. Its cost is bounded, whatever
// the Pod's creator has written into the Pod.
func FromPod(pod *corev1.Pod) *Summary {
	r := &Summary{UID: pod.UID, Namespace: MakeNamespace(pod.Namespace), Name: pod.Name}
	r.RunsToCompletion = pod.Spec.RestartPolicy == corev1.RestartPolicyNever || pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
	deleted, succeeded := pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded
	r.Succeeded = succeeded && r.RunsToCompletion
	r.Failed = pod.Status.Phase == corev1.PodFailed || succeeded && !r.RunsToCompletion && !deleted
	if r.Active = !deleted && !succeeded && !r.Failed; !r.Active {
		return r
	}
	if r.TooLarge = tooLarge(pod); r.TooLarge {
		return r
	}
	r.Labels = MakeLabelSet(pod.Labels)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		r.Controller = MakeName(string(owner.UID))
	}
	r.Node = MakeName(pod.Spec.NodeName)
	r.Facts = FactsOf(pod)
	r.Order.Created = createdAt(pod)
	r.Ready = IsPodReady(pod)
	if ready := Condition(pod, corev1.PodReady); ready != nil {
		r.Since = seconds(ready.LastTransitionTime.Time)
	}
	hashes := ParseHashes(pod.Annotations[appsv1beta1.AnnotationHash])
	r.readInjections(pod, hashes)
	if len(r.Injections) == 0 {
		return r
	}
	r.Order = orderOf(pod)
	r.Grace = uint32(min(GraceSeconds(pod), math.MaxUint32))
	r.Reported = len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers)
	r.Containers = containers(pod)
	r.working = readWorking(pod)
	r.readInPlaceRecords(pod, hashes)
	return r
}

// GetObjectMeta lets client-go's stores compute the key of a Summary. The result
// holds namespace, name and UID only.
func (r *Summary) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: r.Namespace.Value(), Name: r.Name, UID: r.UID}
}

// FullName is the Pod's name as users are told it: namespace/name.
func (r *Summary) FullName() string { return r.Namespace.Value() + "/" + r.Name }

// Injection returns what the Pod records about a SidecarSet in its injected list.
func (r *Summary) Injection(sidecarSet Name) (Injection, bool) {
	for _, in := range r.Injections {
		if in.SidecarSet == sidecarSet {
			return in, true
		}
	}
	return Injection{}, false
}

// Container returns the container or init container of that name.
func (r *Summary) Container(name Name) (Container, bool) {
	for _, c := range r.Containers {
		if c.Name == name {
			return c, true
		}
	}
	return Container{}, false
}

// Working returns the container that does the work of a hot-upgrade sidecar.
func (r *Summary) Working(sidecar Name) (container Name, ok bool) {
	w := r.hot(sidecar)
	return w.container, w != workingContainer{}
}

// HotUpgraded reports whether a hot upgrade of a sidecar is not over: the container
// that works took over from the other one, which has not been given up yet.
func (r *Summary) HotUpgraded(sidecar Name) bool { return r.hot(sidecar).upgraded }

// Idles reports whether the annotations say that one container of a hot-upgrade sidecar idles:
// the other one has not taken over from it, or it has been given up.
func (r *Summary) Idles(sidecar Name) bool { return r.hot(sidecar).alone }

func (r *Summary) hot(sidecar Name) workingContainer {
	for _, w := range r.working {
		if w.sidecar == sidecar {
			return w
		}
	}
	return workingContainer{}
}

// maxRemoved bounds Summary.Removed. No operator leaves such hashes behind.
const maxRemoved = 4

func (r *Summary) readInjections(pod *corev1.Pod, hashes Hashes) {
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
		all = append(all, newContainer(c, kind, StatusOf(pod.Status.InitContainerStatuses, len(pod.Spec.InitContainers), c.Name)))
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all = append(all, newContainer(c, KindOf(pod, c), StatusOf(pod.Status.ContainerStatuses, len(pod.Spec.Containers), c.Name)))
	}
	return all
}

func newContainer(c *corev1.Container, kind Kind, status *corev1.ContainerStatus) Container {
	out := Container{Name: MakeName(c.Name), Image: MakeName(c.Image), Kind: kind, Trouble: troubleOf(status)}
	out.Ready = kind != Plain && status != nil && status.Ready
	if (kind == Plain || kind == RunsOnce) && out.Trouble.String() == "Completed" { // as it should
		out.Trouble = 0
	}
	return out
}

// write is what the Pod says about one write of the operator. Resizes come before updates.
type write struct {
	set    Name
	undone Name // the hash that was written, if the Pod records another one; 0: it does not
	Written
}

// Written returns what the Pod says about the last write of the operator for a SidecarSet. It is
// zero for a Pod that was not written, that has another revision by now, or whose record is
// unreadable. A resize that is under way comes before an earlier update.
func (r *Summary) Written(sidecarSet Name) Written {
	for i := range r.writes {
		if w := &r.writes[i]; w.set == sidecarSet && w.undone == 0 {
			return w.Written
		}
	}
	return Written{}
}

// Undone returns the operator's last write of the Pod for a SidecarSet if it was of this hash, and the
// Pod does not record the hash any more; else it returns zero.
func (r *Summary) Undone(sidecarSet, hash Name) Undone {
	for i := range r.writes {
		if w := &r.writes[i]; w.set == sidecarSet && w.undone == hash && hash != 0 {
			return Undone{w.At, w.StateBefore}
		}
	}
	return Undone{}
}

// Resize returns how far a resize for a SidecarSet is.
func (r *Summary) Resize(sidecarSet Name) ResizeState {
	in, _ := r.Injection(sidecarSet)
	return in.resize
}

// ChangesAt returns the next time after now at which an answer of the Summary changes without
// an event; 0 if none will.
func (r *Summary) ChangesAt(now int64) (next int64) {
	for i := range r.writes {
		if at := r.writes[i].CarriedAt(now); at > now && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

const maxResizeMessage = 200

// readInPlaceRecords keeps what is written about SidecarSets in the injected list only.
func (r *Summary) readInPlaceRecords(pod *corev1.Pod, hashes Hashes) {
	entries, err := InPlaceRecordsOf(pod)
	r.RecordUnreadable = err != nil
	for set, z := range entries.Resizes {
		name := MakeName(set)
		i := slices.IndexFunc(r.Injections, func(in Injection) bool { return in.SidecarSet == name })
		if i < 0 {
			continue
		}
		in := &r.Injections[i]
		in.ResizeTo = max(MakeName(z.Hash), 1) // without a hash it is a revision that is not known
		in.ResizeBefore = MakeName(z.Before)
		var message string
		if in.resize, message = z.Observe(pod); in.resize != ResizeDone {
			r.ResizeMessage = text.Cut(message, maxResizeMessage)
		}
		if in.resize == ResizeMoving || in.resize == ResizeBroken { // else the kubelet leaves the containers as they are
			r.writes = append(r.writes, write{set: name, Written: z.written(pod)})
		}
	}
	for set := range entries.Sets {
		name := MakeName(set)
		if _, injected := r.Injection(name); !injected {
			continue
		}
		e := entries.Of(set, hashes)
		if e == nil {
			if last := entries.Sets[set]; last.Hash != "" && last.Hash != hashes.Hash(set) {
				r.writes = append(r.writes, write{name, MakeName(last.Hash), Written{At: seconds(last.At), StateBefore: last.StateBefore}})
			}
			continue
		}
		r.writes = append(r.writes, write{set: name, Written: e.Observe(pod)})
		for container, before := range e.Containers {
			name := MakeName(container)
			if i := slices.IndexFunc(r.Containers, func(c Container) bool { return c.Name == name }); i >= 0 {
				c, status := ContainerOf(pod, container)
				r.Containers[i].Old = !e.container(pod, c, status, before).replaced
			}
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
