package cluster

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

const stableSet = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata:
  name: agent
  annotations: {sidecarset.io/new-pods: Stable, sidecarset.io/min-ready-seconds: "1", sidecarset.io/timeout-seconds: "30"}
spec:
  selector: {matchLabels: {app: agent}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Release.Namespace }}}}
  updateStrategy: {type: RollingUpdate, maxUnavailable: 1}
  containers: [{name: agent, image: "{{ .Values.image }}"}]
`

// Helm takes a bad image back by itself before a new Pod gets it, if the SidecarSet has sidecarset.io/new-pods: Stable.
func TestHelmTakesABadImageBack(t *testing.T) {
	namespace := newNamespace(t)
	h := newHelm(t, namespace)
	o, err := deploy.Install(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	r := replica(t, o, 1)
	testkit.AwaitCalled(t, api)
	kubelet := &testkit.Kubelet{Client: api, Namespace: namespace, Pull: 50 * time.Millisecond, Missing: func(image string) bool { return image == "bad" }}
	stopKubelet := kubelet.Start(t)
	defer func() {
		testkit.Kubectl(t, cluster, "", "delete", "sidecarset", "agent", "--ignore-not-found")
		testkit.Kubectl(t, cluster, "", "delete", "pods", "--all", "--force", "--grace-period=0", "--namespace="+namespace)
		stopKubelet()
		testkit.Kubectl(t, cluster, "", "delete", "node", namespace) // other tests need a cluster without one
		if err := errors.Join(r.Stop(t.Context()), o.Uninstall(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	chart := t.TempDir()
	if err := os.CopyFS(chart, fstest.MapFS{"Chart.yaml": {Data: []byte("{apiVersion: v2, name: agent, version: 1.0.0}")}, "templates/agent.yaml": {Data: []byte(stableSet)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Install("agent", chart, func(i *action.Install) { i.WaitStrategy = kube.StatusWatcherStrategy }, "image=v1"); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitReady(t, api, "agent") // kstatus reads a SidecarSet without a status as Current
	born := map[string]int{}            // images of new Pods
	bear := func() {
		pod := testkit.NewPod(testkit.AppLabels("agent"))
		pod.Namespace, pod.Spec.TerminationGracePeriodSeconds = namespace, new(int64(0))
		if err := api.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		born[testkit.WantedImage(pod, "agent")]++
	}
	for range 6 {
		bear()
	}
	awaitImage(t, namespace, "v1")
	takesBack := func(u *action.Upgrade) { u.WaitStrategy, u.RollbackOnFailure = kube.StatusWatcherStrategy, true }
	if err := h.Upgrade(t.Context(), "agent", chart, takesBack, "image=v2"); err != nil {
		t.Fatalf("an upgrade to a good image: %v", err)
	}
	awaitImage(t, namespace, "v2")
	clear(born)
	upgraded := make(chan error, 1)
	go func() { upgraded <- h.Upgrade(t.Context(), "agent", chart, takesBack, "image=bad") }()
	tried := 0 // running Pods that had the bad image at one time
	await.Within(t, 10*time.Minute, "the end of the upgrade", func(context.Context) error {
		bear()
		tried = max(tried, imagesOf(t, namespace)["bad"])
		if len(upgraded) == 0 {
			return errors.New("Helm waits")
		}
		return nil
	})
	// Helm has failed because the SidecarSet is Stalled, which is before its timeout.
	if err = <-upgraded; err == nil || !strings.Contains(err.Error(), "has been rolled back") || !strings.Contains(err.Error(), "status: Failed") {
		t.Errorf("the upgrade to a bad image: %v", err)
	}
	testkit.AwaitReady(t, api, "agent")
	bear()
	awaitImage(t, namespace, "v2")
	if tried == 0 || len(born) != 1 || born["v2"] == 0 {
		t.Errorf("%d running Pods had the bad image, and new Pods got %v", tried, born)
	}
	testkit.Report(t, "%d running Pods had the bad image; new Pods got %v; Helm says %v", tried, born, err)
}

// imagesOf counts Pods by the image of their agent.
func imagesOf(t *testing.T, namespace string) map[string]int {
	pods, found := &corev1.PodList{}, map[string]int{}
	if err := api.List(t.Context(), pods, client.InNamespace(namespace)); err != nil {
		t.Error(err)
	}
	for i := range pods.Items {
		found[testkit.WantedImage(&pods.Items[i], "agent")]++
	}
	return found
}

// awaitImage waits until all Pods have the image.
func awaitImage(t *testing.T, namespace, image string) {
	t.Helper()
	await.That(t, func() bool { found := imagesOf(t, namespace); return len(found) == 1 && found[image] > 0 }, "all Pods have "+image)
}
