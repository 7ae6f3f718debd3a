package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (a *app) set() *cobra.Command {
	var dry string
	image := a.verb(&cobra.Command{
		Use:   "image NAME CONTAINER=IMAGE...",
		Short: "Give sidecars other images",
		Long: `Give sidecars other images, as kubectl set image does for Deployments. New Pods get them at
once, and the leader updates running Pods as spec.updateStrategy says.`,
		Example: `  kubectl sidecarset set image log-agent log-agent=example.com/log-agent:v2 --dry-run=server`,
		Args:    arguments(2, -1),
	}, func(ctx context.Context, c client.Client, name string, more []string) error {
		images := map[string]string{}
		for _, argument := range more {
			container, image, _ := strings.Cut(argument, "=")
			if container == "" || image == "" {
				return fmt.Errorf("%q is no CONTAINER=IMAGE", argument)
			}
			images[container] = image
		}
		return a.edit(ctx, c, name, dry, func(object *unstructured.Unstructured) (string, error) {
			return "image updated", setImages(object, images)
		})
	})
	addDryRun(image, &dry)
	c := group(&cobra.Command{Use: "set", Short: "Change the images of a SidecarSet"})
	c.AddCommand(image)
	return c
}

// setImages gives containers of a SidecarSet other images.
func setImages(object *unstructured.Unstructured, images map[string]string) error {
	missing := maps.Clone(images)
	var names []string
	for _, list := range []string{"initContainers", "containers"} {
		value, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", list)
		containers, _ := value.([]any)
		for i := range containers {
			container, _ := containers[i].(map[string]any)
			name, _ := container["name"].(string)
			names = append(names, name)
			if image, wanted := images[name]; wanted {
				container["image"] = image
				delete(missing, name)
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("SidecarSet %q has no container %s; it has %s", object.GetName(),
			strings.Join(slices.Sorted(maps.Keys(missing)), ", "), strings.Join(names, ", "))
	}
	return nil
}
