package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
)

// pageSize is how many objects one answer of an API server has at most.
const pageSize = 500

// namespace is that of the flag -n or of the kubeconfig's context; "default" without both.
func (a *app) namespace() (string, error) {
	namespace, _, err := a.config.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

// client returns a client of the cluster, and how to reach it.
func (a *app) client() (client.WithWatch, *rest.Config, error) {
	config, err := a.config.ToRESTConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("no cluster: %w; name one with --kubeconfig or --context; inject, diff and explain can take SidecarSets from files, with -s", err)
	}
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NewWarningWriter(a.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	return c, config, nil
}

// errNoKind is the error of a cluster without the operator.
var errNoKind = errors.New("the cluster has no kind SidecarSet: install the operator; inject, diff and explain can take SidecarSets from files, with -s")

// each reads a list page by page, and calls see after each page. It says how far it is: after a
// second for the first time, and then every two seconds.
func each(ctx context.Context, c client.Client, progress io.Writer, what string, list client.ObjectList, see func(), options ...client.ListOption) error {
	next, read := time.Now().Add(time.Second), 0
	for {
		page := append(slices.Clone(options), client.Limit(pageSize), client.Continue(list.GetContinue()))
		if err := c.List(ctx, list, page...); err != nil {
			return fmt.Errorf("listing %s: %w", what, err)
		}
		read += meta.LenList(list)
		if see(); list.GetContinue() == "" {
			return nil
		}
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			fmt.Fprintf(progress, "reading %s: %d\n", what, read)
		}
	}
}

// sidecarSets lists the SidecarSets as the cluster serves them.
func sidecarSets(ctx context.Context, c client.Client) (all []unstructured.Unstructured, err error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(appsv1beta1.Kind)
	err = each(ctx, c, io.Discard, "SidecarSets", list, func() { all = append(all, list.Items...) })
	if meta.IsNoMatchError(err) {
		return nil, errNoKind
	}
	return all, err
}

// sidecarSet reads one SidecarSet.
func sidecarSet(ctx context.Context, c client.Client, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(appsv1beta1.Kind)
	if err := c.Get(ctx, types.NamespacedName{Name: name}, object); meta.IsNoMatchError(err) {
		return nil, errNoKind
	} else if err != nil {
		return nil, fmt.Errorf("reading SidecarSet %q: %w", name, err)
	}
	return object, nil
}

// namespaces reads the labels of all Namespaces.
func (a *app) namespaces(ctx context.Context, c client.Client, into map[string]labels.Set) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return each(ctx, c, a.ErrOut, "Namespaces", list, func() {
		for i := range list.Items {
			into[list.Items[i].Name] = list.Items[i].Labels
		}
	})
}

// readCluster takes SidecarSets and their revisions from the cluster. Namespaces are read when
// they are needed.
func (a *app) readCluster(ctx context.Context, parts *clusterview.Parts) error {
	c, _, err := a.client()
	if err != nil {
		return err
	}
	sets, err := sidecarSets(ctx, c)
	if err != nil {
		return err
	}
	refers := false
	for i := range sets {
		parts.SidecarSets = append(parts.SidecarSets, sets[i].Object)
		_, found, _ := unstructured.NestedMap(sets[i].Object, "spec", "injectionStrategy", "revision")
		refers = refers || found
	}
	if refers {
		if parts.Revisions, err = a.revisions(ctx, c, ""); err != nil {
			return err
		}
	}
	parts.Labels = func(ctx context.Context, name string) (labels.Set, error) {
		var namespace corev1.Namespace
		if err := c.Get(ctx, types.NamespacedName{Name: name}, &namespace); apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("namespace %q is neither in the cluster nor in the files", name)
		} else if err != nil {
			return nil, fmt.Errorf("reading namespace %q: %w", name, err)
		}
		return namespace.Labels, nil
	}
	return nil
}

// revisions lists the ControllerRevisions of a SidecarSet, or of all for "".
func (a *app) revisions(ctx context.Context, c client.Client, name string) ([]*appsv1.ControllerRevision, error) {
	options := []client.ListOption{client.InNamespace(a.operatorNamespace), client.HasLabels{appsv1beta1.LabelSidecarSetName}}
	if name != "" {
		options[1] = client.MatchingLabels{appsv1beta1.LabelSidecarSetName: name}
	}
	var list appsv1.ControllerRevisionList
	if err := c.List(ctx, &list, options...); err != nil {
		return nil, fmt.Errorf("listing ControllerRevisions in namespace %s: %w", a.operatorNamespace, err)
	}
	revisions := make([]*appsv1.ControllerRevision, len(list.Items))
	for i := range list.Items {
		revisions[i] = &list.Items[i]
	}
	return revisions, nil
}
