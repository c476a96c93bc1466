package repair

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/selection"
)

// Criteria say which pods count as broken. [CriteriaFor] takes them from a
// dialect; each field may be overridden then. The zero value finds nothing.
type Criteria struct {
	// Containers are the names of the init containers that check redirection.
	Containers []string
	// ExitCodes are those with which the check says that it is missing.
	ExitCodes []int32
	// Message, if set, must be part of the check's termination message.
	Message string
	// Annotation, if set, must be on the pod: the mark of the mesh's injector.
	Annotation string
	// Labels and Fields restrict the pods; nil is no restriction. Fields are those
	// that the API server knows for pods.
	Labels labels.Selector
	Fields fields.Selector
	// HandledLabel and HandledValue are what the label action sets. A pod that
	// has it has been handled. Empty: no label means that.
	HandledLabel, HandledValue string
	// Policy, if set, must select the pod: one that the plugin would pass over
	// again gains nothing from another start.
	Policy *selection.Policy
}

// DefaultLabel is the label of the label action, and DefaultLabelValue its value.
const (
	DefaultLabel      = "meshcni.io/not-redirected"
	DefaultLabelValue = "true"
)

// CriteriaFor returns the criteria of a mesh.
func CriteriaFor(d dialect.Dialect) Criteria {
	c := Criteria{
		Annotation:   d.Policy.StatusAnnotation,
		HandledLabel: DefaultLabel,
		HandledValue: DefaultLabelValue,
		Policy:       &d.Policy,
	}
	if v := d.Validation; v.Container != "" {
		c.Containers = []string{v.Container}
		c.ExitCodes = []int32{int32(v.ExitCode)} //nolint:gosec // documented as 1 to 255
	}
	return c
}

// Validate says what is missing for the criteria to find anything, all at once.
func (c Criteria) Validate() error {
	switch {
	case len(c.Containers) == 0:
		return fmt.Errorf("repair criteria: no init container to look at; this mesh names none")
	case len(c.ExitCodes) == 0:
		return fmt.Errorf("repair criteria: no exit codes that mean missing redirection")
	case slices.Contains(c.ExitCodes, 0):
		return fmt.Errorf("repair criteria: exit code 0 is success")
	}
	return nil
}

// ParseExitCodes reads exit codes separated by commas, each 1 to 255.
func ParseExitCodes(s string) ([]int32, error) {
	var codes []int32
	for field := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(field), 10, 8)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("exit code %q: not a number from 1 to 255", field)
		}
		codes = append(codes, int32(n))
	}
	return codes, nil
}

// podFields are the fields that the API server selects pods by
// (pkg/registry/core/pod/strategy.go, ToSelectableFields).
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
