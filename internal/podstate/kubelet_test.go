package podstate

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// world is one Pod, its kubelet and the operator, second by second. The kubelet is
// that of docs/design/0009: one worker, which computes a status, then stops what
// changed, one container after the other, then pulls and starts, one after the
// other, and looks at the Pod again only after that. Statuses reach the API server
// later, in order, and may be skipped.
type world struct {
	options
	rand *rand.Rand
	now  time.Time
	log  []string

	pod     *corev1.Pod // as the API server has it
	entry   *Entry      // of the last write
	seen    *corev1.Pod // the spec that the kubelet has
	seenAge int

	runtime map[string]*instance
	nextID  int
	work    []job
	pending *corev1.PodStatus
	age     int

	// raced: a container crashed, and the status did not show it at the last write,
	// or the kubelet had not acted on that write.
	raced bool
	// hasty: the last write was sent while the kubelet was busy with the one before.
	hasty bool
}

// options are what may happen.
type options struct {
	observes  bool // the kubelet reports observedGeneration
	longPulls bool
	crashes   bool
	badTags   bool
	probes    bool // sidecars have readiness probes
	grace     int
}

// instance is the container of a name that was started last.
type instance struct {
	id, image string
	digest    string
	running   bool
	restarts  int32
	readyAt   time.Time
	started   time.Time
}

// job is one step of the worker.
type job struct {
	container string
	stop      bool
	update    bool // it happens because the image changed
	left      int  // seconds
}

var sidecars = []string{"proxy", "log"} // a native one and a regular one

// digests by image: log:1 and log:2 are the same bits, as after a retag.
func bitsOf(image string) string {
	switch image {
	case "proxy:2", "log:2":
		return "sha256:" + image[:len(image)-1] + "1"
	}
	return "sha256:" + image
}

func newWorld(seed uint64, o options) *world {
	w := &world{options: o, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_800_000_000, 0), runtime: map[string]*instance{}}
	always := corev1.ContainerRestartPolicyAlways
	grace := int64(o.grace)
	w.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u", Generation: 1},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			InitContainers: []corev1.Container{{Name: "proxy", Image: "proxy:1", RestartPolicy: &always}},
			Containers:     []corev1.Container{{Name: "app", Image: "app:1"}, {Name: "log", Image: "log:1"}},
		},
	}
	w.seen = w.pod.DeepCopy()
	for _, name := range []string{"proxy", "app", "log"} {
		w.start(name)
		w.runtime[name].readyAt = w.now
	}
	w.publish()
	w.pod.Status = *w.pending
	return w
}

func (w *world) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%4d  ", w.now.Unix()-1_800_000_000)+fmt.Sprintf(format, args...))
}

func container(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// upTo is a random number of seconds.
func (w *world) upTo(n int) int { return w.rand.IntN(n + 1) }

func (w *world) chance(percent int) bool { return w.rand.IntN(100) < percent }

func (w *world) start(name string) {
	w.nextID++
	image, restarts := container(w.seen, name).Image, int32(0)
	if last := w.runtime[name]; last != nil {
		restarts = last.restarts + 1
	}
	w.runtime[name] = &instance{
		id: fmt.Sprintf("containerd://%d", w.nextID), image: image, digest: bitsOf(image), restarts: restarts,
		running: true, started: w.now, readyAt: w.now.Add(time.Duration(w.upTo(2)) * time.Second),
	}
}

// tick is one second of the node.
func (w *world) tick() {
	w.now = w.now.Add(time.Second)
	w.age++
	w.seenAge++
	if w.pending != nil && (w.age > 1 || w.chance(50)) {
		w.pod.Status, w.pending = *w.pending, nil
	}
	if w.seen.Generation < w.pod.Generation && (w.seenAge > 2 || w.chance(50)) {
		w.seen = w.pod.DeepCopy()
		w.logf("the kubelet has generation %d", w.seen.Generation)
	}
	if len(w.work) == 0 {
		w.sync()
	} else {
		w.workOn()
	}
	if w.probes || len(w.work) == 0 {
		w.probe()
	}
	if w.crashes && w.chance(4) {
		w.crash(sidecars[w.rand.IntN(len(sidecars))])
	}
}

// sync is the start of a pass of the worker.
func (w *world) sync() {
	w.publish()
	var stops, starts []job
	for _, name := range []string{"proxy", "app", "log"} {
		in := w.runtime[name]
		changed := in.image != container(w.seen, name).Image
		if in.running && changed {
			stops = append(stops, job{name, true, true, w.upTo(w.grace)})
		}
		if !in.running || changed {
			starts = append(starts, job{name, false, changed, w.pull(container(w.seen, name).Image)})
		}
	}
	w.rand.Shuffle(len(stops), func(i, j int) { stops[i], stops[j] = stops[j], stops[i] })
	w.work = append(stops, starts...)
	if len(w.work) > 0 {
		w.logf("sync of generation %d: %+v", w.seen.Generation, w.work)
	}
}

// pull is how long a pull takes. Two short ones, and the time until the kubelet and the API
// server know each other's news, are within the ten seconds that observe allows.
func (w *world) pull(string) int {
	if w.longPulls {
		return w.upTo(90)
	}
	return w.upTo(2)
}

func (w *world) workOn() {
	j := &w.work[0]
	if j.left--; j.left > 0 {
		return
	}
	in := w.runtime[j.container]
	switch {
	case j.stop:
		in.running = false
		w.logf("%s is stopped", j.container)
	case !isBad(container(w.seen, j.container).Image):
		w.start(j.container)
		w.logf("%s runs %s as %s", j.container, w.runtime[j.container].image, w.runtime[j.container].id)
	default:
		w.logf("%s cannot be pulled", j.container)
	}
	w.work = w.work[1:]
}

func isBad(image string) bool { return image[len(image)-1] == 'x' }

// publish hands a status of the runtime to the status manager.
func (w *world) publish() {
	s := corev1.PodStatus{Phase: corev1.PodRunning}
	if w.observes {
		s.ObservedGeneration = w.seen.Generation
	}
	s.InitContainerStatuses = []corev1.ContainerStatus{w.status("proxy")}
	s.ContainerStatuses = []corev1.ContainerStatus{w.status("app"), w.status("log")}
	w.hand(s)
}

func (w *world) status(name string) corev1.ContainerStatus {
	in := w.runtime[name]
	s := corev1.ContainerStatus{Name: name, Image: in.image, ImageID: "docker.io/library/" + name + "@" + in.digest, ContainerID: in.id, RestartCount: in.restarts}
	if in.running {
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(in.started)}
		s.Ready = w.isReady(name)
		s.Started = &s.Ready
	} else {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	}
	return s
}

func (w *world) isReady(name string) bool {
	in := w.runtime[name]
	return in.running && !w.now.Before(in.readyAt)
}

// probe publishes what the probes found since the last status, of the containers
// that it names. While the worker is busy, that is all that is published.
func (w *world) probe() {
	last := w.pod.Status
	if w.pending != nil {
		last = *w.pending
	}
	s := *last.DeepCopy()
	changed := false
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			if c.State.Running == nil {
				continue
			}
			in := w.runtime[c.Name]
			ready := in.id == c.ContainerID && w.isReady(c.Name)
			if !ready && !w.chance(30) { // a failed probe, or several, take their time
				ready = c.Ready
			}
			if ready != c.Ready {
				c.Ready, c.Started, changed = ready, &ready, true
			}
		}
	}
	if changed {
		w.hand(s)
	}
}

// hand gives a status to the status manager, which computes the condition Ready.
func (w *world) hand(s corev1.PodStatus) {
	is := corev1.ConditionTrue
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			if !list[i].Ready {
				is = corev1.ConditionFalse
			}
		}
	}
	at := metav1.NewTime(w.now)
	last := w.pod.Status
	if w.pending != nil {
		last = *w.pending
	}
	for _, c := range last.Conditions {
		if c.Status == is {
			at = c.LastTransitionTime
		}
	}
	s.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: is, LastTransitionTime: at}}
	if w.pending == nil {
		w.age = 0
	}
	w.pending = &s
}

func (w *world) crash(name string) {
	in := w.runtime[name]
	if !in.running {
		return
	}
	in.running = false
	w.logf("%s crashes", name)
	// The kubelet starts it again. If it does so with the image from before the write, the
	// new containerID proves nothing.
	w.raced = w.raced || !w.done()
}

// stale reports whether the status does not show what happened to a sidecar.
func (w *world) stale() bool {
	for _, list := range [][]corev1.ContainerStatus{w.pod.Status.InitContainerStatuses, w.pod.Status.ContainerStatuses} {
		for i := range list {
			if in := w.runtime[list[i].Name]; !in.running || in.id != list[i].ContainerID {
				return true
			}
		}
	}
	return false
}

// write gives sidecars other images, by the API server's status of that moment.
func (w *world) write() {
	var changes []Change
	for i, name := range sidecars {
		c := container(w.pod, name)
		to := fmt.Sprint(name, ":", 1+w.rand.IntN(4))
		if w.badTags && w.chance(25) {
			to = name + ":x"
		}
		if to != c.Image && (i == 0 || w.chance(60)) {
			kind := Regular
			if name == "proxy" {
				kind = Native
			}
			changes = append(changes, Change{Container: name, Kind: kind, From: c.Image, To: to})
		}
	}
	if len(changes) == 0 || w.entry != nil && w.chance(10) {
		changes = nil // a write of annotations alone
	}
	current := w.done() && !w.stale()
	w.raced = !current && w.raced || w.stale()
	w.hasty = !current
	entry := NewEntry(Write{Pod: w.pod, Previous: w.entry, Changes: changes, Now: w.now})
	// The next leader knows only what it can read.
	w.pod.Annotations = map[string]string{"sidecarset.io/in-place": Entries{}.With("mesh", entry).Format(w.pod.UID)}
	entries, err := EntriesOf(w.pod)
	if err != nil {
		panic(err)
	}
	w.entry = entries.Of("mesh", Hashes{})
	for _, c := range changes {
		container(w.pod, c.Container).Image = c.To
	}
	if len(changes) > 0 {
		w.pod.Generation++
		w.seenAge = 0
	}
	w.logf("write of generation %d: %+v, %+v", w.pod.Generation, changes, *w.entry)
}

// done reports whether the kubelet has acted on all writes: the last instance of each
// sidecar has the image of the spec, and nothing is left to stop or start because of an
// image.
func (w *world) done() bool {
	for _, j := range w.work {
		if j.update {
			return false
		}
	}
	for _, name := range sidecars {
		image := container(w.pod, name).Image
		if w.runtime[name].image != image || container(w.seen, name).Image != image {
			return false
		}
	}
	return true
}
