package podstate

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
)

// progress is how far a Pod is with the last update of one SidecarSet.
type progress struct {
	set Name
	inplace.Progress
}

// Progress returns how far the Pod is with the last update in place that the
// operator made for a SidecarSet. Its State is Unmarked for a Pod that was not
// updated, that another operator updated since, or whose record is unreadable.
func (r *Record) Progress(sidecarSet Name) inplace.Progress {
	for _, p := range r.progress {
		if p.set == sidecarSet {
			return p.Progress
		}
	}
	return inplace.Progress{}
}

// Waits reports whether a container waits for the kubelet to act on an earlier image change
// that the operator has no record of. A container that is not ready never waits, so that a bad
// image can be replaced. No container waits for longer than the kubelet needs, because the
// kubelet may run the new image and report it by another name.
func (r *Record) Waits(sidecarSet, container Name) bool {
	if r.Outwaited || r.Progress(sidecarSet).State() != inplace.Unmarked {
		return false
	}
	c, ok := r.Container(container)
	return ok && c.Ready && !r.Landed(sidecarSet, container)
}

// UpdatedElsewhere reports whether another operator made the last update in place for
// a SidecarSet: there is a note of one, and no record of ours.
func (r *Record) UpdatedElsewhere(sidecarSet Name) bool {
	return r.update != nil && slices.Contains(r.update.sets, sidecarSet) && r.Progress(sidecarSet).State() == inplace.Unmarked
}

// SettlesAt returns the first time at which the record changes without an event.
func (r *Record) SettlesAt() (first time.Time, ok bool) {
	note := func(at time.Time, settles bool) {
		if settles && (!ok || at.Before(first)) {
			first, ok = at, true
		}
	}
	for _, p := range r.progress {
		note(p.SettlesAt())
	}
	for i := range r.Injections {
		note(r.Injections[i].silentAt())
	}
	note(time.Unix(int64(r.waitsUntil), 0), r.waitsUntil != 0)
	return first, ok
}

// resizeSilence is the time after which a resize that the kubelet does not report on counts as
// unanswered.
const resizeSilence = 5 * time.Minute

// silentAt is when a resize that the kubelet has not done counts as unanswered.
func (in *Injection) silentAt() (time.Time, bool) {
	return time.Unix(int64(in.resizeAt), 0).Add(resizeSilence), in.Resize == inplace.ResizeMoving
}

// At returns the record as it is at a time: r itself, or a changed copy if
// something has settled by then.
func (r *Record) At(now time.Time) *Record {
	if at, ok := r.SettlesAt(); !ok || now.Before(at) {
		return r
	}
	settled := *r
	settled.progress = slices.Clone(r.progress)
	for i := range settled.progress {
		settled.progress[i].Progress = settled.progress[i].Settled(now)
	}
	settled.Injections = slices.Clone(r.Injections)
	for i := range settled.Injections {
		in := &settled.Injections[i]
		if at, waits := in.silentAt(); waits && !now.Before(at) {
			in.Resize = inplace.ResizeUnanswered
		}
	}
	if r.waitsUntil != 0 && now.Unix() >= int64(r.waitsUntil) {
		settled.waitsUntil, settled.Outwaited = 0, true
	}
	return &settled
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
			if r.Waits(set, c.Name) {
				waiting++
			}
		}
		if waiting > 0 {
			from := max(hashes.UpdatedAt(name).Unix(), pod.CreationTimestamp.Unix())
			until := from + waiting*inplace.GraceSeconds(pod) + int64(elsewherePatience/time.Second)
			r.waitsUntil = max(r.waitsUntil, uint32(min(max(until, 1), math.MaxUint32)))
		}
	}
}

// MarkOf returns the Mark of a SidecarSet's last update of the Pod, nil if there is
// none or if another operator has updated the Pod since. OpenKruise writes the time
// of its update into the hash record, and knows nothing of Marks.
func MarkOf(marks inplace.Marks, hashes Hashes, sidecarSet string) *inplace.Mark {
	mark, ok := marks.Sets[sidecarSet]
	if !ok || mark.At.Before(hashes.UpdatedAt(sidecarSet)) {
		return nil
	}
	return &mark
}

// readMarks keeps progress for SidecarSets in the injected list only.
func (r *Record) readMarks(pod *corev1.Pod, hashes Hashes) {
	marks, err := inplace.MarksOf(pod)
	r.RecordUnreadable = err != nil
	for set := range marks.Sets {
		name := MakeName(set)
		if _, injected := r.Injection(name); !injected {
			continue
		}
		if mark := MarkOf(marks, hashes, set); mark != nil {
			r.progress = append(r.progress, progress{name, inplace.Observe(pod, *mark)})
		}
	}
	r.progress = slices.Clip(r.progress)
	for set, sizes := range marks.Resizes {
		if i := slices.IndexFunc(r.Injections, func(in Injection) bool { return in.SidecarSet == MakeName(set) }); i >= 0 {
			r.Injections[i].Resize, _ = sizes.Observe(pod)
			r.Injections[i].resizeAt = uint32(sizes.At.Unix())
		}
	}
}
