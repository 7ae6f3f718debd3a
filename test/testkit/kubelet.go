package testkit

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
)

// Kubelet writes the status of all Pods of a namespace as a kubelet does. It has a Node with the name of
// the namespace, to which it binds them, and ends those that are deleted. After a change, it
// first writes that it has seen the change, while the old container still runs and the Pod is
// still ready. Later it writes that the new container runs. It starts no program.
type Kubelet struct {
	Client    client.WithWatch
	Namespace string
	// Pull is how long it takes to kill a container and to start another image.
	Pull time.Duration
	// Missing says which images cannot be pulled. None if nil.
	Missing func(image string) bool
	// ShowsNotReady says for which Pods the status shows that a container does not run. If
	// nil, for none: a Pod stays Ready while its container is replaced.
	ShowsNotReady func(pod *corev1.Pod) bool

	mu      sync.Mutex
	workers map[types.UID]*podWorker
	running sync.WaitGroup
}

// podWorker is the goroutine of one Pod.
type podWorker struct {
	latest chan *corev1.Pod // holds the newest version
	// runs has the image that each container was started with; "" if it was killed
	// and the new image cannot be pulled.
	runs map[string]string
	// missing has, for each of these containers, the image that it waits for.
	missing  map[string]string
	restarts map[string]int32
	// sizes are the resources that the containers have.
	sizes map[string]corev1.ResourceRequirements
}

// Start begins to write statuses, until the test ends or stop is called.
func (k *Kubelet) Start(t testing.TB) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	k.workers = map[types.UID]*podWorker{}
	if err := k.join(ctx); err != nil {
		t.Fatalf("creating the Node of a kubelet: %v", err)
	}
	events, err := k.watch(ctx)
	if err != nil {
		t.Fatalf("watching Pods for a kubelet: %v", err)
	}
	k.running.Go(func() { k.beat(ctx) })
	k.running.Go(func() {
		for ctx.Err() == nil {
			for event := range events.ResultChan() {
				if pod, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Deleted {
					k.see(ctx, pod)
				}
			}
			// An API server ends the watch of a slow client.
			_ = await.Until(ctx, func(ctx context.Context) (err error) {
				events, err = k.watch(ctx)
				return err
			})
		}
	})
	stop = func() {
		cancel() // ends the watch, too
		k.running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// join creates the Node, unless an earlier Kubelet has.
func (k *Kubelet) join(ctx context.Context) error {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
	// API servers refuse resizes beyond what a Node has.
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("1000")}
	return client.IgnoreAlreadyExists(k.Client.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.Namespace},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}, Capacity: room, Allocatable: room},
	}))
}

// beat renews the Lease of the Node, so that a controller-manager does not take it for dead.
func (k *Kubelet) beat(ctx context.Context) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: k.Namespace}}
	for {
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &k.Namespace, new(int32(40)), new(metav1.NowMicro())
		if lease.ResourceVersion == "" {
			if err := k.Client.Create(ctx, lease); apierrors.IsAlreadyExists(err) {
				_ = k.Client.Get(ctx, client.ObjectKeyFromObject(lease), lease) // of an earlier Kubelet
			}
		} else if err := k.Client.Update(ctx, lease); err != nil {
			lease.ResourceVersion = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
	}
}

// bind gives a Pod the Node, and reports whether it had one.
func (k *Kubelet) bind(ctx context.Context, pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" {
		return true
	}
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: k.Namespace}}
	_ = k.Client.SubResource("binding").Create(ctx, pod.DeepCopy(), binding) // another event comes
	return false
}

// watch hands all present Pods to their workers, and returns a watch of later changes.
func (k *Kubelet) watch(ctx context.Context) (watch.Interface, error) {
	list := &corev1.PodList{}
	if err := k.Client.List(ctx, list, client.InNamespace(k.Namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		k.see(ctx, &list.Items[i])
	}
	return k.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(k.Namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
}

// see hands a Pod to its worker.
func (k *Kubelet) see(ctx context.Context, pod *corev1.Pod) {
	switch {
	case finished(pod):
		return
	case pod.DeletionTimestamp != nil && pod.Spec.NodeName == k.Namespace:
		_ = k.Client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
		return
	case pod.DeletionTimestamp != nil, !k.bind(ctx, pod):
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	w, known := k.workers[pod.UID]
	if !known {
		w = &podWorker{latest: make(chan *corev1.Pod, 1), runs: map[string]string{}, missing: map[string]string{}, restarts: map[string]int32{}, sizes: map[string]corev1.ResourceRequirements{}}
		k.workers[pod.UID] = w
		w.adopt(pod)
		k.running.Go(func() { k.work(ctx, w) })
	}
	select { // the worker needs only the newest version
	case <-w.latest:
	default:
	}
	w.latest <- pod
}

// adopt takes over the status that an earlier Kubelet, or a test, has written.
func (w *podWorker) adopt(pod *corev1.Pod) {
	for _, s := range statuses(pod) {
		if image, ok := StartedImage(s); ok {
			w.runs[s.Name], w.restarts[s.Name] = image, s.RestartCount
			if s.Resources != nil {
				w.sizes[s.Name] = *s.Resources
			}
		}
	}
}

func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return append(pod.Status.InitContainerStatuses[:len(pod.Status.InitContainerStatuses):len(pod.Status.InitContainerStatuses)], pod.Status.ContainerStatuses...)
}

// work does the work of a kubelet for one Pod. Like a kubelet, it sees the next change only when
// it has finished the one before.
func (k *Kubelet) work(ctx context.Context, w *podWorker) {
	for {
		var pod *corev1.Pod
		select {
		case <-ctx.Done():
			return
		case pod = <-w.latest:
		}
		changed := w.changed(pod)
		resized := w.resized(pod)
		if len(changed) == 0 && !resized && pod.Status.ObservedGeneration == pod.Generation && pod.Status.Phase == corev1.PodRunning {
			continue
		}
		if len(w.runs) > 0 && resized {
			k.write(ctx, w, pod, nil, corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
		}
		w.resize(pod)
		if len(w.runs) > 0 { // a kubelet writes a status before it kills a container
			k.write(ctx, w, pod, nil)
			if len(changed) == 0 {
				continue
			}
			if k.ShowsNotReady != nil && k.ShowsNotReady(pod) {
				k.write(ctx, w, pod, changed)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(k.Pull):
			}
		}
		for _, c := range changed {
			w.start(c, k.Missing == nil || !k.Missing(c.Image))
		}
		k.write(ctx, w, pod, nil)
	}
}

// resized reports whether a container does not have the resources of the spec.
func (w *podWorker) resized(pod *corev1.Pod) bool {
	for _, c := range lasting(pod) {
		if has, started := w.sizes[c.Name]; started && !equality.Semantic.DeepEqual(has, c.Resources) {
			return true
		}
	}
	return false
}

func (w *podWorker) resize(pod *corev1.Pod) {
	for _, c := range lasting(pod) {
		w.sizes[c.Name] = c.Resources
	}
}

// changed returns the containers that neither run the image in the spec nor wait for it.
func (w *podWorker) changed(pod *corev1.Pod) []corev1.Container {
	var changed []corev1.Container
	for _, c := range lasting(pod) {
		if w.runs[c.Name] != c.Image && w.missing[c.Name] != c.Image {
			changed = append(changed, c)
		}
	}
	return changed
}

// lasting are the containers that run as long as the Pod: those of the app and the
// native sidecars.
func lasting(pod *corev1.Pod) []corev1.Container {
	all := pod.Spec.Containers[:len(pod.Spec.Containers):len(pod.Spec.Containers)]
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

func (w *podWorker) start(c corev1.Container, pulled bool) {
	if _, again := w.runs[c.Name]; again {
		w.restarts[c.Name]++
	}
	w.runs[c.Name], w.missing[c.Name] = "", c.Image
	if pulled {
		w.runs[c.Name], w.missing[c.Name] = c.Image, ""
	}
}

// write writes a status in which the containers in away do not run, with these conditions about
// resizes.
func (k *Kubelet) write(ctx context.Context, w *podWorker, pod *corev1.Pod, away []corev1.Container, resizes ...corev1.PodCondition) {
	now := metav1.Now()
	status := map[string]any{"phase": corev1.PodRunning, "observedGeneration": pod.Generation}
	if pod.Status.StartTime == nil {
		status["startTime"] = now
	}
	ready := true
	for member, containers := range map[string][]corev1.Container{"containerStatuses": pod.Spec.Containers, "initContainerStatuses": pod.Spec.InitContainers} {
		list := []corev1.ContainerStatus{}
		for _, c := range containers {
			gone := slices.ContainsFunc(away, func(a corev1.Container) bool { return a.Name == c.Name })
			s := containerStatus(w, pod, c, gone, now)
			ready = ready && s.Ready
			list = append(list, s)
		}
		status[member] = list
	}
	readiness := corev1.ConditionTrue
	if !ready {
		readiness = corev1.ConditionFalse
	}
	conditions := []corev1.PodCondition{}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		is := readiness
		if kind == corev1.PodInitialized {
			is = corev1.ConditionTrue
		}
		c := corev1.PodCondition{Type: kind, Status: is, LastTransitionTime: now}
		for _, old := range pod.Status.Conditions {
			if old.Type == kind && old.Status == is {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		conditions = append(conditions, c)
	}
	status["conditions"] = withResizes(pod, conditions, resizes)
	conflict := false // with another writer, or because another Pod has the name now
	_ = await.Until(ctx, func(ctx context.Context) error {
		if conflict {
			now := &corev1.Pod{}
			if err := k.Client.Get(ctx, client.ObjectKeyFromObject(pod), now); err != nil {
				return client.IgnoreNotFound(err)
			}
			if now.UID != pod.UID || finished(now) {
				return nil
			}
			pod.ResourceVersion = now.ResourceVersion
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}, "status": status})
		if err != nil {
			panic(err) // plain values can be encoded
		}
		written := pod.DeepCopy()
		err = k.Client.Status().Patch(ctx, written, client.RawPatch(types.StrategicMergePatchType, body))
		if err == nil {
			pod.ResourceVersion = written.ResourceVersion
		}
		conflict = apierrors.IsConflict(err)
		return client.IgnoreNotFound(err)
	})
}

// finished says whether a test has ended a Pod, which then stays as it is.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// withResizes adds the condition of a resize in progress, or removes that of one that is over.
func withResizes(pod *corev1.Pod, conditions, resizes []corev1.PodCondition) []any {
	all := []any{}
	for _, c := range conditions {
		all = append(all, c)
	}
	for _, c := range resizes {
		c.ObservedGeneration = pod.Generation
		all = append(all, c)
	}
	if len(resizes) == 0 {
		all = append(all, map[string]any{"type": corev1.PodResizeInProgress, "$patch": "delete"})
	}
	return all
}

func containerStatus(w *podWorker, pod *corev1.Pod, c corev1.Container, away bool, now metav1.Time) corev1.ContainerStatus {
	image, lasts := w.runs[c.Name]
	s := corev1.ContainerStatus{Name: c.Name, Image: image, RestartCount: w.restarts[c.Name], Started: new(true), Ready: true}
	switch {
	case !lasts: // a plain init container
		s.Image = c.Image
		s.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now, ContainerID: "test://init"}
		s.ContainerID, s.ImageID, s.Started = "test://init", imageID(c.Image), new(false)
		return s
	case image == "":
		s.Image, s.Ready, s.Started = c.Image, false, new(false)
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}
		return s
	}
	if size, ok := w.sizes[c.Name]; ok {
		s.Resources, s.AllocatedResources = &size, size.Requests
	}
	s.ImageID = imageID(image)
	s.ContainerID = fmt.Sprintf("test://%s#%s/%d", image, pod.UID, s.RestartCount)
	if away {
		s.Ready, s.Started = false, new(false)
		s.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now, ContainerID: s.ContainerID}
		return s
	}
	s.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
	for _, old := range statuses(pod) {
		if old.Name == c.Name && old.ContainerID == s.ContainerID && old.State.Running != nil {
			s.State.Running = old.State.Running
		}
	}
	return s
}

func imageID(image string) string {
	repository, _, _ := strings.Cut(image, ":")
	sum := fnv.New128a()
	sum.Write([]byte(image))
	return fmt.Sprintf("%s@sha256:%064x", repository, sum.Sum(nil))
}

// StartedImage returns the image that a container was started with, if a Kubelet
// has started it.
func StartedImage(s corev1.ContainerStatus) (string, bool) {
	rest, ours := strings.CutPrefix(s.ContainerID, "test://")
	image, _, started := strings.Cut(rest, "#")
	return image, ours && started
}
