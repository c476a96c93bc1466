package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// why adds to an error what the cluster says of the pod: how its containers ended, and its last warnings. It is asked even if the
// time is up.
func (c *cluster) why(ctx context.Context, pod *corev1.Pod, err error) error {
	texts := []string{err.Error()}
	if text := cmp.Or(pod.Status.Message, pod.Status.Reason); text != "" {
		texts = append(texts, text)
	}
	for _, s := range pod.Status.ContainerStatuses {
		switch w, end := s.State.Waiting, s.State.Terminated; {
		case end != nil:
			texts = append(texts, strings.TrimSpace(fmt.Sprintf("container %s has ended with code %d: %s", s.Name, end.ExitCode, end.Message)))
		case w != nil && w.Reason != "" && w.Reason != "ContainerCreating":
			texts = append(texts, fmt.Sprintf("container %s waits: %s: %s", s.Name, w.Reason, w.Message))
		}
	}
	ctx, stop := written(ctx)
	defer stop()
	list, failed := c.client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.name": pod.Name, "type": corev1.EventTypeWarning}.String(), Limit: pageSize,
	})
	if failed != nil {
		texts = append(texts, "its events are not known: "+failed.Error())
	} else if len(list.Items) > 0 {
		last := slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return when(&a).Compare(when(&b)) })
		texts = append(texts, "event "+last.Reason+": "+last.Message)
	}
	return errors.New(strings.ReplaceAll(strings.Join(texts, "; "), "\n", "; "))
}

// when is an event's time.
func when(e *corev1.Event) time.Time {
	if at := e.LastTimestamp.Time; !at.IsZero() {
		return at
	}
	return e.EventTime.Time
}

// wait waits, and says why ctx has ended if that comes first.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
