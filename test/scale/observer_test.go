package scale

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// counters are the numbers in the status of a SidecarSet, or those of a recount.
type counters struct{ matched, updated, ready int32 }

// seenPod is what the observer knows about a Pod.
type seenPod struct {
	set              string
	image            string // of the sidecar, as the spec has it
	disturbed, ready bool
	said             bool // the Pod has the condition that the operator writes
}

// tallied is what the observer knows about one SidecarSet.
type tallied struct {
	counters
	image     string // the image that Pods are to have
	disturbed int    // Pods that are not ready, or do not run the image in their spec
	said      int    // Pods with the condition that the operator writes
	most      int    // the largest number of Pods that were disturbed at once
	past      []moment
	lags      []time.Duration
}

// moment is the result of a recount until a time.
type moment struct {
	counters
	until time.Time
}

// observer counts Pods by a watch of its own, which shares no code with the
// operator: a Pod is updated if its sidecar has the wanted image, and it is
// disturbed as long as it is not ready or its status shows another image.
type observer struct {
	mu    sync.Mutex
	pods  map[string]seenPod // by name
	sets  map[string]*tallied
	first time.Time // when the first Pod got the newest image
	last  time.Time // when the last Pod got it
	moved int       // how many Pods got it
}

// observe watches the Pods of a namespace and all SidecarSets until the test ends.
func observe(t *testing.T, api client.WithWatch, namespace string) *observer {
	t.Helper()
	o := &observer{pods: map[string]seenPod{}, sets: map[string]*tallied{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for _, watched := range []struct {
		list    client.ObjectList
		example client.Object
		options []client.ListOption
		event   func(object any, gone bool)
	}{
		{&corev1.PodList{}, &corev1.Pod{}, []client.ListOption{client.InNamespace(namespace)}, o.podEvent},
		{&appsv1beta1.SidecarSetList{}, &appsv1beta1.SidecarSet{}, nil, o.setEvent},
	} {
		reflector := cache.NewReflectorWithOptions(listWatch(api, watched.list, watched.options...), watched.example,
			&sink{event: watched.event}, cache.ReflectorOptions{})
		wg.Go(func() { reflector.RunWithContext(ctx) })
	}
	return o
}

// want says which image the Pods of SidecarSets are to have from now on.
func (o *observer) want(image string, sets ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.moved, o.first, o.last = 0, time.Time{}, time.Time{}
	for _, name := range sets {
		s := o.set(name)
		s.record(time.Now())
		s.image, s.updated, s.most = image, 0, s.disturbed
		for _, p := range o.pods {
			if p.set == name && p.image == image {
				s.updated++
			}
		}
	}
}

func (o *observer) set(name string) *tallied {
	s, ok := o.sets[name]
	if !ok {
		s = &tallied{}
		o.sets[name] = s
	}
	return s
}

// record keeps what the counters were until now.
func (s *tallied) record(now time.Time) {
	if len(s.past) == 0 || s.past[len(s.past)-1].counters != s.counters {
		s.past = append(s.past, moment{s.counters, now})
	} else {
		s.past[len(s.past)-1].until = now
	}
}

func (o *observer) podEvent(object any, gone bool) {
	pod := object.(*corev1.Pod)
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	before, known := o.pods[pod.Name]
	if known {
		s := o.set(before.set)
		s.record(now)
		s.add(before, -1)
	}
	if gone || pod.DeletionTimestamp != nil {
		delete(o.pods, pod.Name)
		return
	}
	p := seenPod{set: pod.Labels[setLabel], ready: is(pod, corev1.PodReady), said: is(pod, appsv1beta1.PodConditionUpgradable)}
	sidecar, status := sidecarOf(pod)
	if sidecar == "" {
		return // another test recounts Pods without the sidecar
	}
	p.image = sidecar
	p.disturbed = !p.ready || status != sidecar
	o.pods[pod.Name] = p
	s := o.set(p.set)
	if !known {
		s.record(now)
	}
	s.add(p, 1)
	s.most = max(s.most, s.disturbed)
	if known && p.image != before.image && p.image == s.image {
		if o.moved++; o.moved == 1 {
			o.first = now
		}
		o.last = now
	}
}

func (s *tallied) add(p seenPod, n int32) {
	s.matched += n
	if p.image == s.image {
		s.updated += n
	}
	if p.said {
		s.said += int(n)
	}
	if !p.disturbed {
		s.ready += n
	} else {
		s.disturbed += int(n)
	}
}

// setEvent notes how old the counters of a status are at the moment.
func (o *observer) setEvent(object any, gone bool) {
	if gone {
		return
	}
	set := object.(*appsv1beta1.SidecarSet)
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.set(set.Name)
	// Ready Pods are not compared: their number goes up and down, so one number can belong
	// to several times.
	says := func(c counters) bool {
		return c.matched == set.Status.MatchedPods && c.updated == set.Status.UpdatedPods
	}
	if says(s.counters) {
		s.lags = append(s.lags, 0)
		return
	}
	for i := len(s.past) - 1; i >= 0; i-- {
		if says(s.past[i].counters) {
			s.lags = append(s.lags, time.Since(s.past[i].until))
			return
		}
	}
}

// lagging returns how old statuses were when they were written, sorted, and forgets them.
func (o *observer) lagging() (lags []time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.sets {
		lags = append(lags, s.lags...)
		s.lags, s.past = nil, nil
	}
	slices.Sort(lags)
	return lags
}

// rolled returns how many Pods got the wanted image, and when the first and the last Pod got it.
func (o *observer) rolled() (pods int, first, last time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.moved, o.first, o.last
}

// mostDisturbed returns the largest number of Pods of one SidecarSet that were disturbed at
// once, since want.
func (o *observer) mostDisturbed(sets []string) (most int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range sets {
		most = max(most, o.set(name).most)
	}
	return most
}

// complete returns nil if each SidecarSet has this many Pods, and all of them have the wanted
// image and run it.
func (o *observer) complete(sets []string, each int32) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range sets {
		if s := o.set(name); s.counters != (counters{each, each, each}) {
			return fmt.Errorf("SidecarSet %s has %+v, want %d of each", name, s.counters, each)
		}
	}
	return nil
}

// told returns nil if this many Pods of each SidecarSet have the condition that the operator
// writes when it has nothing more urgent to do.
func (o *observer) told(sets []string, each int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range sets {
		if said := o.set(name).said; said != each {
			return fmt.Errorf("%d Pods of SidecarSet %s have the condition, want %d", said, name, each)
		}
	}
	return nil
}

// agree returns nil if each status has the numbers of the recount.
func (o *observer) agree(ctx context.Context, api client.Client, sets []string) error {
	for _, name := range sets {
		set := &appsv1beta1.SidecarSet{}
		if err := api.Get(ctx, client.ObjectKey{Name: name}, set); err != nil {
			return err
		}
		says := counters{set.Status.MatchedPods, set.Status.UpdatedPods, set.Status.ReadyPods}
		o.mu.Lock()
		want := o.set(name).counters
		o.mu.Unlock()
		if says != want {
			return fmt.Errorf("the status of SidecarSet %s says %+v, a recount %+v", name, says, want)
		}
	}
	return nil
}

func is(pod *corev1.Pod, condition corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}

// sidecarOf returns the image of a Pod's sidecar, and the one that its status shows.
func sidecarOf(pod *corev1.Pod) (spec, status string) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == sidecarName {
				spec = containers[i].Image
			}
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if statuses[i].Name == sidecarName {
				status = statuses[i].Image
			}
		}
	}
	return spec, status
}
