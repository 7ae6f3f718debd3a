package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// The objects that OpenKruise 1.9 left in a cluster: a SidecarSet and its revision, with known
// hashes, and a Pod that it injected.
const leftSidecarSet = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata:
  name: s1
  annotations:
    kruise.io/sidecarset-hash: vcv9449744252484czf45xb572z8zbcwvc7c5b5cx85c44f2wf2964d88c5zd944
    kruise.io/sidecarset-hash-without-image: 62258bb8d4vv7w584244bd5df277d4vw9fbf49c99967447fxw5z4f4956b97fz4
spec:
  selector: {matchLabels: {app: left}}
  updateStrategy: {type: NotUpdate, partition: 0, maxUnavailable: 1}
  injectionStrategy: {}
  revisionHistoryLimit: 10
  containers:
  - name: agent
    image: busybox:1.36
    imagePullPolicy: IfNotPresent
    podInjectPolicy: BeforeAppContainer
    resources: {}
    shareVolumePolicy: {type: disabled}
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    upgradeStrategy: {upgradeType: ColdUpgrade}
`

const leftRevision = `
apiVersion: apps/v1
kind: ControllerRevision
metadata:
  namespace: kruise-system
  name: s1-6d5857687f
  labels: {kruise.io/sidecarset-name: s1, controller.kubernetes.io/hash: 6d5857687f}
  annotations:
    kruise.io/sidecarset-hash: vcv9449744252484czf45xb572z8zbcwvc7c5b5cx85c44f2wf2964d88c5zd944
    kruise.io/sidecarset-hash-without-image: 62258bb8d4vv7w584244bd5df277d4vw9fbf49c99967447fxw5z4f4956b97fz4
  ownerReferences:
  - {apiVersion: apps.kruise.io/v1beta1, kind: SidecarSet, name: s1, uid: UID, controller: true, blockOwnerDeletion: true}
revision: 7
data: {"spec":{"$patch":"replace","containers":[{"image":"busybox:1.36","imagePullPolicy":"IfNotPresent","name":"agent","podInjectPolicy":"BeforeAppContainer","resources":{},"shareVolumePolicy":{"type":"disabled"},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","upgradeStrategy":{"upgradeType":"ColdUpgrade"}}],"imagePullSecrets":null,"initContainers":null,"patchPodMetadata":null,"volumes":null}}
`

const leftPod = `
apiVersion: v1
kind: Pod
metadata:
  namespace: default
  name: left
  labels: {app: left}
  annotations:
    kruise.io/sidecarset-hash: '{"s1":{"updateTimestamp":"2026-01-02T03:04:05Z","hash":"vcv9449744252484czf45xb572z8zbcwvc7c5b5cx85c44f2wf2964d88c5zd944","sidecarSetName":"s1","sidecarList":["agent"],"controllerRevision":"s1-6d5857687f"}}'
    kruise.io/sidecarset-hash-without-image: '{"s1":{"updateTimestamp":"2026-01-02T03:04:05Z","hash":"62258bb8d4vv7w584244bd5df277d4vw9fbf49c99967447fxw5z4f4956b97fz4","sidecarSetName":"s1","sidecarList":["agent"]}}'
    kruise.io/sidecarset-injected-list: s1
spec:
  schedulerName: none # a scheduler would write the status
  containers:
  - {name: agent, image: "busybox:1.36", env: [{name: IS_INJECTED, value: "true"}]}
  - {name: app, image: "example.com/app:v1"}
`

// rolesOfTheGuide are the manifests of step 3 in docs/migration.md.
func rolesOfTheGuide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy.Root(), "config/openkruise/revisions.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// leave creates these objects in a cluster that has only the CRD.
func leave(t *testing.T, c client.Client) (*appsv1beta1.SidecarSet, *appsv1.ControllerRevision, *corev1.Pod) {
	t.Helper()
	set, revision, p := &appsv1beta1.SidecarSet{}, &appsv1.ControllerRevision{}, &corev1.Pod{}
	read := func(manifest string, into client.Object) {
		t.Helper()
		if err := yaml.Unmarshal([]byte(manifest), into); err != nil {
			t.Fatal(err)
		}
		await.Eventually(t, "creating "+into.GetName(), func(ctx context.Context) error { // API servers serve a kind a little after the CRD is Established
			return c.Create(ctx, into)
		})
	}
	read(leftSidecarSet, set)
	namespace := &corev1.Namespace{}
	read("{apiVersion: v1, kind: Namespace, metadata: {name: kruise-system}}", namespace)
	t.Cleanup(func() { _ = c.Delete(context.WithoutCancel(t.Context()), namespace) })
	read(strings.Replace(leftRevision, "UID", string(set.UID), 1), revision)
	read(leftPod, p)
	return set, revision, p
}

// Every object that OpenKruise left stays as it is, except for the status. Its revision
// remains the current one in the history.
func TestObjectsOfOpenKruiseAreTakenOver(t *testing.T) {
	old := borrow(t)
	if _, err := old.Kubectl(t.Context(), "", "apply", "--server-side", "-f", filepath.Join(deploy.Root(), "config/crd/bases/apps.kruise.io_sidecarsets.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := old.Established(t.Context(), "crd/"+deploy.CRD); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(old.Config(), client.Options{Scheme: api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	set, revision, p := leave(t, c)

	there, err := deploy.Install(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	giveBack(t, there)
	if _, err := old.Kubectl(t.Context(), rolesOfTheGuide(t), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	replica, err := there.StartReplica(t.Context(), 9, "--revision-namespace=kruise-system")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replica.Process.Stop)
	awaitTakeover(t, c, set)

	again := set.DeepCopy()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(set), again); err != nil || again.Generation != set.Generation {
		t.Errorf("the SidecarSet's generation is %d, was %d: %v", again.Generation, set.Generation, err)
	}
	if diff := cmp.Diff(set.Annotations, again.Annotations); diff != "" {
		t.Errorf("its annotations (-before +after):\n%s", diff)
	}
	var revisions appsv1.ControllerRevisionList
	if err := c.List(t.Context(), &revisions, client.MatchingLabels{appsv1beta1.LabelSidecarSetName: "s1"}); err != nil {
		t.Fatal(err)
	}
	if len(revisions.Items) != 1 || revisions.Items[0].ResourceVersion != revision.ResourceVersion {
		t.Errorf("revisions are %v, want the one that was there, untouched", numbers(revisions.Items))
	}
	after := &corev1.Pod{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(p), after); err != nil || after.ResourceVersion != p.ResourceVersion {
		t.Errorf("the Pod was written: %v", err)
	}
	testkit.AwaitReady(t, c, "s1")
	fresh := pod("default", "fresh", "app=left")
	if err := c.Create(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"agent", "app"}, testkit.ContainerNames(fresh.Spec.Containers)); diff != "" {
		t.Errorf("containers of a new Pod (-want +got):\n%s", diff)
	}
	if record := fresh.Annotations[appsv1beta1.AnnotationHash]; !strings.Contains(record, `"controllerRevision":"`+revision.Name+`"`) {
		t.Errorf("a new Pod records %s", record)
	}
}

// awaitTakeover waits until the operator has counted the Pod and recorded the revision.
func awaitTakeover(t *testing.T, c client.Client, set *appsv1beta1.SidecarSet) {
	t.Helper()
	await.Eventually(t, "the status", func(ctx context.Context) error {
		now := &appsv1beta1.SidecarSet{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(set), now); err != nil {
			return err
		}
		s := now.Status
		if s.ObservedGeneration != now.Generation || s.MatchedPods != 1 || s.UpdatedPods != 1 || s.UninjectedPods != 0 || s.LatestRevision != "s1-6d5857687f" {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}
