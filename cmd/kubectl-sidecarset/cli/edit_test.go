package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/revision"
)

func objectOf(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}
	object.SetGroupVersionKind(appsv1beta1.Kind)
	return object
}

const proxied = `
metadata: {name: log-agent, annotations: {team: a}}
spec:
  customVersion: v2
  selector: {matchLabels: {app: web}}
  initContainers: [{name: proxy, image: "proxy:v1"}]
  containers: [{name: log-agent, image: "log-agent:v2"}]
  volumes: [{name: logs, emptyDir: {}}]
`

func TestRestoreWritesWhatIsRecorded(t *testing.T) {
	recorded := []byte(`{"spec":{"$patch":"replace","containers":[{"name":"log-agent","image":"log-agent:v1"}],"initContainers":[{"name":"proxy","image":"proxy:v1"}],"imagePullSecrets":[{"name":"pull"}],"volumes":null}}`)
	for version, want := range map[string]string{"": "", "v1": "  customVersion: v1\n"} {
		spec, err := revision.Spec(recorded)
		if err != nil {
			t.Fatal(err)
		}
		object := objectOf(t, proxied)
		restore(object, spec, version)
		if got := string(specText(object.Object["spec"])); got != `spec:
  containers:
  - image: log-agent:v1
    name: log-agent
`+want+`  imagePullSecrets:
  - name: pull
  initContainers:
  - image: proxy:v1
    name: proxy
  selector:
    matchLabels:
      app: web
` {
			t.Errorf("got:\n%s", got)
		}
	}
}

// label writes the stored object as another user does.
func label(ctx context.Context, t *testing.T, c client.Client) {
	t.Helper()
	object, err := sidecarSet(ctx, c, "log-agent")
	if err != nil {
		t.Fatal(err)
	}
	object.SetLabels(map[string]string{"by": "another"})
	if err := c.Update(ctx, object); err != nil {
		t.Fatal(err)
	}
}

// Package clustertest tries dry runs.
func TestEditKeepsWhatOthersWrite(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a := &app{Streams: Streams{Out: &bytes.Buffer{}}}
	c := fake.NewClientBuilder().WithObjects(objectOf(t, proxied)).Build()
	calls := 0
	err := a.edit(ctx, c, "log-agent", "none", func(object *unstructured.Unstructured) (string, error) {
		if calls++; calls == 1 {
			label(ctx, t, c)
		}
		return "image updated", setImages(object, map[string]string{"proxy": "proxy:v2"})
	})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := sidecarSet(ctx, c, "log-agent")
	if err != nil {
		t.Fatal(err)
	}
	if image := stored.Object["spec"].(map[string]any)["initContainers"].([]any)[0].(map[string]any)["image"]; image != "proxy:v2" || stored.GetLabels()["by"] != "another" {
		t.Errorf("stored: %v", stored)
	}
}

// A busy operator writes the status between each read and write of an edit.
func TestEditIsTriedAgainForHalfAMinute(t *testing.T) {
	for conflicts, want := range map[int]string{100: "", 1000: "other writers were faster for 30s; run the command again: "} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			a, tries := &app{Streams: Streams{Out: &out}}, 0
			c := interceptor.NewClient(fake.NewClientBuilder().WithObjects(objectOf(t, proxied)).Build(), interceptor.Funcs{
				Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
					if tries++; tries <= conflicts {
						return apierrors.NewConflict(schema.GroupResource{Resource: "sidecarsets"}, object.GetName(), errors.New("it has changed"))
					}
					return c.Update(ctx, object, options...)
				},
			})
			err := a.edit(t.Context(), c, "log-agent", "none", func(object *unstructured.Unstructured) (string, error) {
				return "image updated", setImages(object, map[string]string{"proxy": "proxy:v2"})
			})
			if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("after %d conflicts: %v, want %q", conflicts, err, want)
			}
			if (err == nil) != strings.Contains(out.String(), "image updated") {
				t.Errorf("after %d conflicts it prints %q", conflicts, out.String())
			}
		})
	}
}
