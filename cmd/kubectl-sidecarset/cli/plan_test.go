package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
)

// updating says whether to write the golden files. internal/fixtures defines the flag.
func updating() bool { return flag.Lookup("update").Value.String() == "true" }

// Each testdata/plan/*.txtar is a cluster: sets.yaml, more.yaml, and pods.yaml, in which the
// SidecarSets are injected. Each NAME.yaml with a NAME.txt is applied, and NAME.txt is its plan.
func TestPlans(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1767225600")
	archives, err := filepath.Glob("testdata/plan/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("%v, %v", archives, err)
	}
	for _, name := range archives {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := txtar.Write(archive, dir); err != nil {
			t.Fatal(err)
		}
		objects := stored(t, dir)
		for i, file := range archive.Files {
			change, is := strings.CutSuffix(file.Name, ".txt")
			if !is {
				continue
			}
			t.Run(change, func(t *testing.T) {
				text, code := planned(t, objects, filepath.Join(dir, change+".yaml"), "")
				if code != exitChanges {
					t.Errorf("exit code %d", code)
				}
				if updating() {
					archive.Files[i].Data = []byte(text)
				} else if text != string(file.Data) {
					t.Errorf("got\n%s\nwant\n%s", text, file.Data)
				}
			})
		}
		if name == filepath.Join("testdata", "plan", "update.txtar") {
			if text, code := planned(t, objects, filepath.Join(dir, "same.yaml"), ""); code != 0 || text != "SidecarSet agent: nothing changes\n" {
				t.Errorf("the stored SidecarSet: %d, %s", code, text)
			}
			text, code := planned(t, objects, filepath.Join(dir, "image.yaml"), "yaml")
			for _, part := range []string{"action: update", "+++ new", "outcome: InPlace"} {
				if code != exitChanges || !strings.Contains(text, part) {
					t.Errorf("%d, no %q in\n%s", code, part, text)
				}
			}
		}
		if updating() {
			if err := os.WriteFile(name, txtar.Format(archive), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// stored returns the objects of a cluster.
func stored(t *testing.T, dir string) (objects []client.Object) {
	t.Helper()
	var parts clusterview.Parts
	parts.Namespaces = map[string]labels.Set{"shop": {}}
	for _, name := range []string{"sets.yaml", "more.yaml", "nodes.yaml", "pods.yaml"} {
		files, err := manifest.Read([]string{filepath.Join(dir, name)}, false, nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objectsOf(files) {
			object := &unstructured.Unstructured{Object: o.Value}
			if isSidecarSet(o) {
				parts.SidecarSets = append(parts.SidecarSets, o.Value)
			}
			if name == "pods.yaml" {
				decision, err := clusterview.New(parts).Decide(t.Context(), o.Namespace, o.Value)
				if err != nil || decision.Refused != nil {
					t.Fatalf("%v, %v", err, decision.Refused)
				}
				patch, err := jsonpatch.DecodePatch(decision.Patch())
				if err != nil {
					t.Fatal(err)
				}
				text, err := json.Marshal(object)
				if err == nil {
					text, err = patch.Apply(text)
				}
				if err == nil {
					err = json.Unmarshal(text, object)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			objects = append(objects, object)
		}
	}
	return objects
}

// planned plans a manifest against a cluster with these objects.
func planned(t *testing.T, objects []client.Object, file, output string) (text string, code int) {
	t.Helper()
	var out bytes.Buffer
	p := &planner{app: &app{Streams: Streams{Out: &out, ErrOut: &out}, operatorNamespace: "sidecarset-system"}, resizes: true}
	var copies []client.Object
	byName := func(object client.Object) []string { return []string{object.GetName()} }
	for _, object := range objects {
		copies = append(copies, object.DeepCopyObject().(client.Object))
	}
	// The fake client answers a dry run with what was sent, so this one writes.
	p.client = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(copies...).WithIndex(&corev1.ConfigMap{}, "metadata.name", byName).WithIndex(&corev1.Secret{}, "metadata.name", byName).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if !slices.Contains(options, client.PatchOption(client.DryRunAll)) {
				t.Error("planning writes")
			}
			return c.Patch(ctx, object, patch)
		},
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			if !slices.Contains(options, client.ApplyOption(client.DryRunAll)) {
				t.Error("planning writes")
			}
			return c.Apply(ctx, object, client.FieldOwner("kubectl"), client.ForceOwnership)
		},
	}).Build()
	err := p.run(t.Context(), &filesFlags{files: []string{file}}, output)
	if code, is := errors.AsType[exit](err); is {
		return out.String(), int(code)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), 0
}

// A webhook that cannot be called is a cause without a field.
func TestARefusalWithoutAFieldSaysWhy(t *testing.T) {
	file, err := manifest.Parse("a.yaml", []byte("kind: SidecarSet\nmetadata: {name: agent}\n"))
	if err != nil {
		t.Fatal(err)
	}
	err = refusal(file.Documents[0].Objects()[0], apierrors.NewInternalError(errors.New("failed calling webhook")))
	if want := "a.yaml:1: SidecarSet agent: it cannot be applied: Internal error occurred: failed calling webhook"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
