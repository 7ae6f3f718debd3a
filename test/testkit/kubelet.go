package testkit

import (
	"context"
	"encoding/json"
	"slices"
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

	"github.com/sidecarset/operator/internal/fixtures/cluster"
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
	// Breaks says how long after its start an image turns its Pod not Ready; 0: never. None does if nil.
	Breaks func(image string) time.Duration
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
	pod    *corev1.Pod      // with the status that the kubelet knows
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
		w = &podWorker{latest: make(chan *corev1.Pod, 1), pod: pod.DeepCopy()} // an earlier Kubelet, or a test, may have written a status
		k.workers[pod.UID] = w
		k.running.Go(func() { k.work(ctx, w) })
	}
	select { // the worker needs only the newest version
	case <-w.latest:
	default:
	}
	w.latest <- pod
}

// work does the work of a kubelet for one Pod. Like a kubelet, it sees the next change only when
// it has finished the one before.
func (k *Kubelet) work(ctx context.Context, w *podWorker) {
	var breaks <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-breaks:
			for _, c := range w.pod.Spec.Containers {
				if s := cluster.Status(w.pod, c.Name); k.Breaks(cluster.Started(s)) > 0 {
					s.Ready = false
				}
			}
			k.write(ctx, w)
			continue
		case next := <-w.latest:
			next = next.DeepCopy()
			next.Status = w.pod.Status
			w.pod = next
		}
		pod := w.pod
		changed, resized, runs := changedIn(pod), resizedIn(pod), pod.Status.Phase == corev1.PodRunning
		if len(changed) == 0 && len(resized) == 0 && pod.Status.ObservedGeneration == pod.Generation && runs {
			continue
		}
		cluster.Acknowledge(pod)
		if runs && len(resized) > 0 {
			k.write(ctx, w, corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
		}
		for _, c := range resized {
			cluster.Resize(pod, c)
		}
		if runs { // a kubelet writes a status before it kills a container
			k.write(ctx, w)
			if len(changed) == 0 {
				continue
			}
			if k.ShowsNotReady != nil && k.ShowsNotReady(pod) {
				for _, c := range changed {
					cluster.Stop(pod, c, "Completed", time.Now())
				}
				k.write(ctx, w)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(k.Pull):
			}
		}
		for _, c := range changed {
			if image := cluster.Find(pod, c).Image; k.Breaks != nil && k.Breaks(image) > 0 {
				breaks = time.After(k.Breaks(image))
			}
			if image := cluster.Find(pod, c).Image; k.Missing != nil && k.Missing(image) {
				cluster.Wait(pod, c, "ImagePullBackOff")
			} else {
				cluster.Start(pod, c, time.Now())
			}
		}
		k.write(ctx, w)
	}
}

// changedIn are the containers that neither run the image in the spec nor wait for it. The first time, they
// are all.
func changedIn(pod *corev1.Pod) (names []string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		s := cluster.Status(pod, c.Name)
		waits := s.State.Waiting != nil && s.State.Waiting.Reason == "ImagePullBackOff" && s.Image == c.Image
		ended := s.State.Terminated != nil && s.Ready // a plain init container
		if image := cluster.Started(s); !waits && !ended && (image != c.Image || s.State.Running == nil) {
			names = append(names, c.Name)
		}
	}
	return names
}

// resizedIn are the running containers that do not have the resources of the spec.
func resizedIn(pod *corev1.Pod) (names []string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if s := cluster.Status(pod, c.Name); s.Resources != nil && !equality.Semantic.DeepEqual(*s.Resources, c.Resources) {
			names = append(names, c.Name)
		}
	}
	return names
}

// write writes the status, with these conditions about resizes.
func (k *Kubelet) write(ctx context.Context, w *podWorker, resizes ...corev1.PodCondition) {
	pod, now, ready := w.pod, time.Now(), true
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		ready = ready && s.Ready
	}
	pod.Status.Phase = corev1.PodRunning
	if pod.Status.StartTime == nil {
		pod.Status.StartTime = &metav1.Time{Time: now}
	}
	cluster.SetCondition(pod, corev1.PodInitialized, true, now)
	cluster.SetCondition(pod, corev1.ContainersReady, ready, now)
	cluster.SetReady(pod, ready, now)
	status := map[string]any{
		"phase": pod.Status.Phase, "observedGeneration": pod.Generation, "startTime": pod.Status.StartTime,
		"containerStatuses": pod.Status.ContainerStatuses, "initContainerStatuses": pod.Status.InitContainerStatuses, "conditions": withResizes(pod, resizes),
	}
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

// withResizes are the conditions that a kubelet writes, with that of a resize in progress, or without that
// of one that is over.
func withResizes(pod *corev1.Pod, resizes []corev1.PodCondition) []any {
	all := []any{}
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady:
			all = append(all, c)
		}
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
