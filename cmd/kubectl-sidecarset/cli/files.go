package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
)

// filesFlags are those of the commands that read manifests.
type filesFlags struct {
	files, sidecarSets []string
	recursive          bool
	excluded           []string
}

func (f *filesFlags) add(c *cobra.Command, what string) {
	f.addFiles(c, what)
	c.Flags().StringSliceVarP(&f.sidecarSets, "sidecarsets", "s", nil, "`files` or directories with the SidecarSets, and with the Namespaces that they select by label; without the flag, both come from the cluster")
}

// addFiles is add for commands whose SidecarSets are among the manifests.
func (f *filesFlags) addFiles(c *cobra.Command, what string) {
	c.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "`files` or directories with "+what+", or - for standard input")
	c.Flags().BoolVarP(&f.recursive, "recursive", "R", false, "read directories with all that is below them")
	c.Flags().StringSliceVar(&f.excluded, "excluded-namespaces", []string{"kube-system"}, "`namespaces` whose Pods are never injected, as the operator has them; its own is always one of them")
}

// read reads the manifests of -f. With an error about some files, it returns the others.
func (f *filesFlags) read(a *app) ([]*manifest.File, error) {
	if len(f.files) == 0 {
		return nil, errors.New("no manifests: name them with -f, or read standard input with -f -")
	}
	return manifest.Read(f.files, f.recursive, a.In)
}

// now is the time that injected Pods record. SOURCE_DATE_EPOCH makes the output reproducible.
func now() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Now(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q; it must be a number of seconds", text)
	}
	return time.Unix(seconds, 0), nil
}

// world returns what decides about the Pods of the manifests.
func (f *filesFlags) world(ctx context.Context, a *app, manifests []*manifest.File) (*clusterview.View, error) {
	parts, err := f.parts(ctx, a, manifests)
	if err != nil {
		return nil, err
	}
	return clusterview.New(*parts), nil
}

// parts returns what a World about the Pods of the manifests is made of. If SidecarSets come
// from files, so do the Namespaces; Namespaces in the manifests count, too.
func (f *filesFlags) parts(ctx context.Context, a *app, manifests []*manifest.File) (*clusterview.Parts, error) {
	at, err := now()
	if err != nil {
		return nil, err
	}
	parts := clusterview.Parts{Namespaces: map[string]labels.Set{}, Excluded: append([]string{a.operatorNamespace}, f.excluded...), Now: at}
	if len(f.sidecarSets) == 0 {
		if err := addParts(&parts, manifests, false); err != nil {
			return nil, err
		}
		if err := a.readCluster(ctx, &parts); err != nil {
			return nil, err
		}
		return &parts, nil
	}
	given, err := manifest.Read(f.sidecarSets, f.recursive, a.In)
	if err != nil {
		return nil, err
	}
	if err := addParts(&parts, append(given, manifests...), true); err != nil {
		return nil, err
	}
	if len(parts.SidecarSets) == 0 {
		return nil, errors.New("no SidecarSet is in the files of --sidecarsets")
	}
	return &parts, nil
}

// addParts takes Namespaces from manifests and, if all is set, SidecarSets and their revisions.
func addParts(parts *clusterview.Parts, files []*manifest.File, all bool) error {
	generated := 0
	for _, o := range objectsOf(files) {
		switch {
		case o.APIVersion == "v1" && o.Kind == "Namespace":
			var namespace corev1.Namespace
			if err := decode(o, &namespace); err != nil {
				return err
			}
			parts.Namespaces[o.Name] = namespace.Labels
		case !all:
		case isSidecarSet(o):
			generated++ // each is another one
			parts.SidecarSets = append(parts.SidecarSets, asWritten(o.AsStored(generated)))
		case o.APIVersion == "apps/v1" && o.Kind == "ControllerRevision":
			revision := new(appsv1.ControllerRevision)
			if err := decode(o, revision); err != nil {
				return err
			}
			parts.Revisions = append(parts.Revisions, revision)
		}
	}
	return nil
}

// objectsOf returns the objects of manifests.
func objectsOf(files []*manifest.File) (objects []*manifest.Object) {
	for _, file := range files {
		for _, document := range file.Documents {
			objects = append(objects, document.Objects()...)
		}
	}
	return objects
}

func isSidecarSet(o *manifest.Object) bool {
	return strings.HasPrefix(o.APIVersion, appsv1beta1.GroupVersion.Group+"/") && o.Kind == appsv1beta1.Kind.Kind
}

// asWritten returns a SidecarSet without the hashes that the webhook has recorded: those of a
// file may be of another revision.
func asWritten(object map[string]any) map[string]any {
	out := runtime.DeepCopyJSON(object)
	metadata, _ := out["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	delete(annotations, appsv1beta1.AnnotationHash)
	delete(annotations, appsv1beta1.AnnotationHashWithoutImage)
	return out
}

func decode(o *manifest.Object, into any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Value, into); err != nil {
		return o.Errorf("%w", err)
	}
	return nil
}
