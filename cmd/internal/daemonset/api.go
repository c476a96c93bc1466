//go:build linux

package daemonset

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

var (
	daemonSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// object is the metadata of an object, which is all that the server is asked for.
type object = metav1.PartialObjectMetadata

// api makes the requests.
type api struct {
	source Source
	mu     sync.Mutex
	client metadata.Interface
}

func (a *api) resource(r schema.GroupVersionResource) (metadata.Getter, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client == nil {
		config, err := a.source.Config()
		if err != nil {
			return nil, fmt.Errorf("prepare to ask the API server: %w", err)
		}
		if a.client, err = metadata.NewForConfig(config); err != nil {
			a.client = nil
			return nil, fmt.Errorf("prepare to ask the API server: %w", err)
		}
	}
	return a.client.Resource(r), nil
}

func (a *api) daemonSets() (metadata.ResourceInterface, error) {
	r, err := a.resource(daemonSets)
	if err != nil {
		return nil, err
	}
	return r.Namespace(a.source.Namespace), nil
}

// get reads the DaemonSet; nil if there is none.
func (a *api) get(ctx context.Context) (*object, error) {
	r, err := a.daemonSets()
	if err != nil {
		return nil, err
	}
	return one(ctx, r, a.source.Name)
}

// namespace reads the DaemonSet's namespace; nil if there is none.
func (a *api) namespace(ctx context.Context) (*object, error) {
	r, err := a.resource(namespaces)
	if err != nil {
		return nil, err
	}
	return one(ctx, r, a.source.Namespace)
}

func one(ctx context.Context, r metadata.ResourceInterface, name string) (*object, error) {
	o, err := r.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case o.UID == "":
		return nil, errors.New("the API server's answer is no object")
	}
	return o, nil
}

// selection is for a list and a watch of one name, which a role may grant by resourceNames.
func (a *api) selection() string {
	return fields.OneTermEqualSelector("metadata.name", a.source.Name).String()
}

// listTimeout is for a server that takes a request and never answers.
const listTimeout = 30 * time.Second

// list reads the DaemonSet, nil if there is none, and the version of the list, from where a watch may start. (That of the
// object may be long gone from the server's memory.)
func (a *api) list(ctx context.Context) (found *object, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	r, err := a.daemonSets()
	if err != nil {
		return nil, "", err
	}
	list, err := r.List(ctx, metav1.ListOptions{FieldSelector: a.selection()})
	if err != nil {
		return nil, "", err
	}
	if list.ResourceVersion == "" {
		return nil, "", errors.New("the API server's answer is no list")
	}
	for i := range list.Items {
		if list.Items[i].Name == a.source.Name {
			found = &list.Items[i]
		}
	}
	return found, list.ResourceVersion, nil
}

// watch calls note with each change of the DaemonSet since a version, until the server ends the watch, as it does after some
// minutes; version is then where to go on.
func (a *api) watch(ctx context.Context, since string, note func(*object)) (version string, err error) {
	lasts := int64(300 + rand.IntN(300)) //nolint:gosec // spreads nodes, keeps no secret
	ctx, cancel := context.WithTimeout(ctx, time.Duration(lasts)*time.Second+listTimeout)
	defer cancel()
	r, err := a.daemonSets()
	if err != nil {
		return since, err
	}
	w, err := r.Watch(ctx, metav1.ListOptions{
		FieldSelector: a.selection(), ResourceVersion: since, AllowWatchBookmarks: true, TimeoutSeconds: &lasts,
	})
	if err != nil {
		return since, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		o, ok := event.Object.(*object)
		switch {
		case event.Type == watch.Error: // 410: the version is too old by now
			return since, apierrors.FromObject(event.Object)
		case !ok:
			return since, fmt.Errorf("watch: the API server sent a %T", event.Object)
		case event.Type == watch.Deleted:
			note(nil)
		case event.Type != watch.Bookmark:
			note(o)
		}
		since = o.ResourceVersion
	}
	return since, ctx.Err()
}
