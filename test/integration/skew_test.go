package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
	"github.com/sidecarset/operator/test/unauthenticated"
)

// invented has members that no version of Kubernetes knows, at every depth where the schema
// accepts unknown members.
const invented = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: NotUpdate}
containers:
- name: agent
  image: example.com/agent:v1
  inventedMember: {deep: [1, {er: true}, null]}
  inventedNumber: 7
  ports: [{containerPort: 80, inventedPort: x}]
  readinessProbe: {inventedProbe: {port: 80}, httpGet: {port: 80, inventedOption: [x]}}
  resources: {limits: {cpu: "1"}, inventedResources: {a: b}}
  volumeMounts: [{name: data, mountPath: /data, inventedMount: true}]
initContainers:
- {name: native, image: "example.com/native:v1", restartPolicy: Always, inventedMember: {a: 1.5}}
volumes:
- {name: data, inventedSource: {size: 1Gi}, emptyDir: {inventedMedium: x}}
`

// inventedIn returns every invented member of a value's JSON, by its path.
func inventedIn(t *testing.T, value any) map[string]any {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := utiljson.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	found := map[string]any{}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for key, member := range value {
				if strings.HasPrefix(key, "invented") {
					found[path+"/"+key] = member
					continue
				}
				walk(path+"/"+key, member)
			}
		case []any:
			for i, element := range value {
				if named, ok := element.(map[string]any); ok && named["name"] != nil {
					walk(fmt.Sprint(path, "/", named["name"]), element)
					continue
				}
				walk(fmt.Sprint(path, "/", i), element)
			}
		}
	}
	walk("", value)
	return found
}

// The API server, defaulting, conversion, revisions and injection keep unknown members of a
// SidecarSet's containers and volumes, in both versions.
func TestInventedMembersSurvive(t *testing.T) {
	for _, written := range []schema.GroupVersionKind{appsv1beta1.Kind, v1alpha1} {
		t.Run("written as "+written.Version, func(t *testing.T) {
			namespace := testkit.Namespace(t, api, nil)
			set := newSidecarSet(t, namespace, invented)
			want := inventedIn(t, set.Object["spec"])
			if len(want) != 10 {
				t.Fatalf("the manifest has %d invented members: %v", len(want), want)
			}
			set.SetGroupVersionKind(written)
			set.SetGenerateName("")
			set.SetName(namespace)
			text, err := json.Marshal(set)
			if err != nil {
				t.Fatal(err)
			}
			apply(t, string(text))
			for _, read := range []schema.GroupVersionKind{appsv1beta1.Kind, v1alpha1} {
				stored := readAs(t, namespace, read)
				if diff := gocmp.Diff(want, inventedIn(t, stored["spec"])); diff != "" {
					t.Errorf("read as %s (-want +got):\n%s", read.Version, diff)
				}
				if policy := agentOf(stored)["imagePullPolicy"]; policy != "IfNotPresent" {
					t.Errorf("the container was not defaulted: pull policy %v", policy)
				}
			}
			set.Object = readAs(t, namespace, appsv1beta1.Kind)
			testkit.AwaitObserved(t, api, set.GetName())
			checkRecorded(t, namespace, want)
			awaitPatchWith(t, namespace, want)
		})
	}
}

// agentOf is the container agent.
func agentOf(set map[string]any) map[string]any {
	return field(set, "spec", "containers").([]any)[0].(map[string]any)
}

// checkRecorded checks that the newest revision holds the invented members.
func checkRecorded(t *testing.T, sidecarSet string, want map[string]any) {
	t.Helper()
	revisions := mustHistory(t, sidecarSet)
	newest := revisions[len(revisions)-1]
	var recorded map[string]any
	if err := utiljson.Unmarshal(newest.Data.Raw, &recorded); err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, inventedIn(t, recorded["spec"])); diff != "" {
		t.Errorf("recorded in %s (-want +got):\n%s", newest.Name, diff)
	}
}

// awaitPatchWith waits until the patch of every replica contains these invented members. The
// API server drops them, so the test asks the replicas directly.
func awaitPatchWith(t *testing.T, namespace string, want map[string]any) {
	t.Helper()
	const object = `{"metadata":{"name":"p","labels":{"app":"web"}},"spec":{"containers":[{"name":"app","image":"a"}]}}`
	for _, replica := range replicas {
		await.Eventually(t, "a patch with the invented members", func(context.Context) error {
			patched, err := patchedBy(t, replica, namespace, object)
			if err != nil {
				return err
			}
			if diff := gocmp.Diff(want, inventedIn(t, patched["spec"])); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
	}
}

// patchedBy returns a new Pod after the patch of a replica.
func patchedBy(t *testing.T, replica *deploy.Replica, namespace, object string) (map[string]any, error) {
	t.Helper()
	patch, err := replica.Patch(t.Context(), []byte(unauthenticated.PodReview(namespace, object)))
	if err != nil {
		return nil, err
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	patched, err := operations.Apply([]byte(object))
	if err != nil {
		return nil, err
	}
	var out map[string]any
	err = utiljson.Unmarshal(patched, &out)
	return out, err
}
