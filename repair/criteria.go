package repair

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/selection"
)

// Criteria select the pods that count as broken. Start from [CriteriaFor]; the zero value finds nothing.
type Criteria struct {
	// Containers are the names of the init containers that check redirection.
	Containers []string
	// ExitCodes are the exit codes that mean missing redirection.
	ExitCodes []int32
	// Message must be part of the check's termination message. Empty means any.
	Message string
	// Annotation must be on the pod; injectors set one. Empty means none.
	Annotation string
	// Labels and Fields restrict the pods; nil means all. See [ParseFields] for the fields that pods have.
	Labels labels.Selector
	Fields fields.Selector
	// HandledLabel and HandledValue are the label that [ActionLabel] sets. A pod with it counts as handled. An empty
	// HandledLabel means that no label does.
	HandledLabel, HandledValue string
	// Policy must select the pod: one that the plugin passes over gains nothing from another start. nil means no policy. A [Controller] goes by what
	// its meshes say of the pod instead, if there is one.
	Policy *selection.Policy
}

// CriteriaFor returns the criteria of a mesh, with the label "not-redirected" of the product's prefix, "true".
func CriteriaFor(id meshcni.Identity, d dialect.Dialect) Criteria {
	c := Criteria{
		Annotation:   d.Policy.StatusAnnotation,
		HandledLabel: id.Key("not-redirected"),
		HandledValue: "true",
		Policy:       &d.Policy,
	}
	if v := d.Check; v.Container != "" {
		c.Containers = []string{v.Container}
		c.ExitCodes = []int32{int32(v.ExitCode)} //nolint:gosec // documented as 1 to 255
	}
	return c
}

// Validate returns an error if the criteria cannot find anything.
func (c Criteria) Validate() error {
	switch {
	case len(c.Containers) == 0:
		return errors.New("repair criteria: no init container to look at; this mesh names none")
	case len(c.ExitCodes) == 0:
		return errors.New("repair criteria: no exit codes that mean missing redirection")
	case slices.Contains(c.ExitCodes, 0):
		return errors.New("repair criteria: exit code 0 is success")
	}
	return nil
}

// ParseFields parses a field selector for pods, such as "metadata.namespace!=dev". It refuses fields that the API server
// does not select pods by.
func ParseFields(s string) (fields.Selector, error) {
	selector, err := fields.ParseSelector(s)
	if err != nil {
		return nil, err
	}
	for _, r := range selector.Requirements() {
		if !podFields(&corev1.Pod{}).Has(r.Field) {
			return nil, fmt.Errorf("pods are not selected by %q", r.Field)
		}
	}
	return selector, nil
}

// handled reports whether the pod has the label that says so.
func (c Criteria) handled(pod *corev1.Pod) bool {
	return c.HandledLabel != "" && pod.Labels[c.HandledLabel] == c.HandledValue
}

// podFields returns the fields that the API server selects pods by (pkg/registry/core/pod/strategy.go,
// ToSelectableFields).
func podFields(pod *corev1.Pod) fields.Set {
	podIP := pod.Status.PodIP
	if podIP == "" && len(pod.Status.PodIPs) > 0 {
		podIP = pod.Status.PodIPs[0].IP
	}
	return fields.Set{
		"metadata.name":            pod.Name,
		"metadata.namespace":       pod.Namespace,
		"spec.nodeName":            pod.Spec.NodeName,
		"spec.restartPolicy":       string(pod.Spec.RestartPolicy),
		"spec.schedulerName":       pod.Spec.SchedulerName,
		"spec.serviceAccountName":  pod.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(pod.Spec.HostNetwork),
		"status.phase":             string(pod.Status.Phase),
		"status.podIP":             podIP,
		"status.nominatedNodeName": pod.Status.NominatedNodeName,
	}
}
