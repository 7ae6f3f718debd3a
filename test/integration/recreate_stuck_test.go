package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

// If replacements are created but never become ready, the leader stops at the budget. When the
// content is repaired, the leader continues.
func (r *plane) testNeverReady(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", recreated)
	r.deploy(t, namespace, 6, func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(1)) })
	a.awaitRecreated(t, 6)
	watched := r.watchReady(t, namespace)
	a.changeTo(t, "example.com/side:missing", "2")
	a.await(t, "a replacement", func(s appsv1beta1.SidecarSetStatus) error {
		if s.UpdatedPods == 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	<-time.After(time.Minute) // longer than an eviction takes a place without a replacement
	watched.wantAtLeast(t, 4, 6)
	a.changeTo(t, "example.com/side:v2", "2")
	a.awaitRecreated(t, 6)
}

// awaitBlocked waits until a number of Pods are blocked for a reason, with a text in its
// message, and all other Pods are updated and ready.
func (a *app) awaitBlocked(t *testing.T, reason, mentioned string, blocked, all int) {
	t.Helper()
	a.await(t, "Pods that are blocked for "+reason, func(s appsv1beta1.SidecarSetStatus) error {
		if int(s.MatchedPods) != all || int(s.UpdatedReadyPods) != all-blocked || len(s.BlockedPods) != 1 {
			return fmt.Errorf("%+v", s)
		}
		if b := s.BlockedPods[0]; b.Reason != reason || int(b.Pods) != blocked || !strings.Contains(b.Message, mentioned) {
			return fmt.Errorf("%+v", b)
		}
		return nil
	})
}

// Some Nodes have kubelets that are too old to restart native sidecars. Their Pods take no
// place of the budget, so the other Pods are updated. In mode Outdated they are replaced.
func (r *plane) testNodeTooOld(t *testing.T) {
	const name = "kubelet"
	on := map[string]func(*corev1.PodSpec){}
	for kind, version := range map[string]string{"old": "v1.31.9", "new": "v1.32.0"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			GenerateName: kind + "-", Labels: map[string]string{name: kind},
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake", "stand.test/kubelet-version": version},
		}}
		if err := r.api.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		on[kind] = func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{name: kind} }
	}
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Never", `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate, maxUnavailable: 1}
initContainers: [{name: side, image: "example.com/side:v1", restartPolicy: Always}]
`)
	r.deploy(t, namespace, 3, on["old"])
	r.deploy(t, namespace, 2, on["new"])
	a.awaitRecreated(t, 5)
	a.merge(t, map[string]any{"spec": map[string]any{"initContainers": []any{map[string]any{
		"name": "side", "image": "example.com/side:v2", "restartPolicy": "Always",
	}}}})
	a.awaitBlocked(t, "NodeTooOld", "node old-", 3, 5)
	for _, p := range r.list(t, namespace) {
		if image, restarts := testkit.WantedImage(&p, "side"), statusOfContainer(t, &p, "side").RestartCount; (image == "example.com/side:v2") != strings.HasPrefix(p.Spec.NodeName, "new-") || restarts > 1 {
			t.Errorf("%s on Node %s has the image %s, and %d restarts", p.Name, p.Spec.NodeName, image, restarts)
		}
	}
	watched := r.watchReady(t, namespace)
	a.setMode(t, "Outdated")
	a.awaitRecreated(t, 5)
	watched.wantAtLeast(t, 4, 5)
}

// A resize would change the Pods' QoS class. The leader sees this only when it reads a Pod.
// The Pods keep their resources. In mode All they are replaced.
func (r *plane) testStuck(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Uninjected", strings.Replace(recreated, `side:v1"`, `side:v1", resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 100m, memory: 16Mi}}`, 1))
	r.deploy(t, namespace, 3, func(s *corev1.PodSpec) {
		all := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
		s.Containers[0].Resources = corev1.ResourceRequirements{Requests: all, Limits: all}
	})
	a.awaitRecreated(t, 3)
	before := uids(r.list(t, namespace))
	a.merge(t, map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
		"name": "side", "image": "example.com/side:v1", "resources": map[string]any{
			"requests": map[string]any{"cpu": "50m", "memory": "16Mi"}, "limits": map[string]any{"cpu": "100m", "memory": "16Mi"},
		},
	}}}})
	a.awaitBlocked(t, "ImmutableFieldChanged", "QoS class", 3, 3)
	for _, p := range r.list(t, namespace) {
		if got := cpuOf(t, &p); got != "100m" || p.Status.QOSClass != corev1.PodQOSGuaranteed {
			t.Errorf("%s: the sidecar requests cpu %s, and the Pod has the QoS class %s", p.Name, got, p.Status.QOSClass)
		}
	}
	watched := r.watchReady(t, namespace)
	a.setMode(t, "All")
	a.awaitRecreated(t, 3)
	watched.wantAtLeast(t, 1, 3)
	for _, p := range r.list(t, namespace) {
		for _, uid := range before {
			if p.UID == uid && p.DeletionTimestamp == nil {
				t.Errorf("%s is still there", p.Name)
			}
		}
	}
}
