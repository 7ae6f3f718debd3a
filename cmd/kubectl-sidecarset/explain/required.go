package explain

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// required says what API servers do with a Pod that lacks the sidecars, by the condition Required.
func required(set *appsv1beta1.SidecarSet) []string {
	c := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionRequired)
	if set.Labels[appsv1beta1.LabelRequired] == "" || c == nil {
		return nil
	}
	return []string{fmt.Sprintf("It has the label %s (Required is %s, %s): %s", appsv1beta1.LabelRequired, c.Status, c.Reason, c.Message)}
}
