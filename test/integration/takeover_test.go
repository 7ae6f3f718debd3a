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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// storedAsV1alpha1 is a SidecarSet that only a client of v1alpha1 writes.
const storedAsV1alpha1 = `
apiVersion: apps.kruise.io/v1alpha1
kind: SidecarSet
metadata: {name: old}
spec:
  namespace: default
  selector: {matchLabels: {app: old}}
  updateStrategy: {type: NotUpdate}
  containers: [{name: side, image: "example.com/side:v1"}]
`

// OpenKruise has stored SidecarSets as v1alpha1. They can be listed only when a replica serves /convert; for this it
// needs a certificate, for a certificate a leader is needed, and API servers call ready replicas only. The operator
// starts all the same. Every object that OpenKruise left stays as it is, except for the status. Its revision remains
// the current one in the history.
func takesOverOpenKruise(t *testing.T) {
	definition, err := os.ReadFile(filepath.Join(deploy.Root(), "config/crd/bases/apps.kruise.io_sidecarsets.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	swap := strings.NewReplacer("storage: true", "storage: false", "storage: false", "storage: true")
	testkit.Kubectl(t, cluster, swap.Replace(string(definition)), "apply", "--server-side", "-f", "-")
	if err := cluster.Established(t.Context(), "crd/"+deploy.CRD); err != nil {
		t.Fatal(err)
	}
	create(t, parse(t, "{apiVersion: v1, kind: Namespace, metadata: {name: kruise-system}}", ""))
	old := leave(t, storedAsV1alpha1)
	set := leave(t, leftSidecarSet)
	revision := leave(t, strings.Replace(leftRevision, "UID", string(set.GetUID()), 1))
	p := leave(t, leftPod)

	there := installApart(t, deploy.Default)
	guide := filepath.Join(deploy.Root(), "config/openkruise/revisions.yaml") // step 3 in docs/migration.md
	testkit.Kubectl(t, cluster, "", "apply", "-f", guide)
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "-f", guide); err != nil {
			t.Error(err)
		}
	})
	replica := there.start(t, 9, "--revision-namespace=kruise-system")
	await.Eventually(t, "injection", func(ctx context.Context) error { // it is ready, so that it converts, before it has read the SidecarSet
		return replica.Injects(ctx, old.GetName(), "default", map[string]string{"app": "old"})
	})
	testkit.AwaitObserved(t, api, old.GetName())
	taken := testkit.Await(t, api, set.GetName(), "the status", func(set *appsv1beta1.SidecarSet) error {
		if s := set.Status; s.MatchedPods != 1 || s.UpdatedPods != 1 || s.UninjectedPods != 0 || s.LatestRevision != revision.GetName() {
			return fmt.Errorf("status %+v", s)
		}
		return testkit.Ready(set)
	})
	if diff := cmp.Diff(set.GetAnnotations(), taken.Annotations); diff != "" || taken.Generation != set.GetGeneration() {
		t.Errorf("the SidecarSet's generation is %d, was %d; its annotations (-before +after):\n%s", taken.Generation, set.GetGeneration(), diff)
	}
	var revisions appsv1.ControllerRevisionList
	if err := api.List(t.Context(), &revisions, client.MatchingLabels{appsv1beta1.LabelSidecarSetName: set.GetName()}); err != nil {
		t.Fatal(err)
	}
	if len(revisions.Items) != 1 || revisions.Items[0].ResourceVersion != revision.GetResourceVersion() {
		t.Errorf("revisions are %v, want the one that was there, untouched", numbers(revisions.Items))
	}
	after := p.DeepCopy()
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), after); err != nil || after.GetResourceVersion() != p.GetResourceVersion() {
		t.Errorf("the Pod was written: %v", err)
	}
	fresh := pod("default", "fresh", "app=left")
	create(t, fresh)
	if diff := cmp.Diff([]string{"agent", "app"}, testkit.ContainerNames(fresh.Spec.Containers)); diff != "" {
		t.Errorf("containers of a new Pod (-want +got):\n%s", diff)
	}
	if record := fresh.Annotations[appsv1beta1.AnnotationHash]; !strings.Contains(record, `"controllerRevision":"`+revision.GetName()+`"`) {
		t.Errorf("a new Pod records %s", record)
	}
}

// leave creates an object of a manifest.
func leave(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	object := parse(t, manifest, "")
	await.Eventually(t, "creating "+object.GetName(), func(ctx context.Context) error { // API servers serve a kind a little after the CRD is Established
		return api.Create(ctx, object)
	})
	return object
}
