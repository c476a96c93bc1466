//go:build linux

package daemonset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// object is the part of an object's metadata that is looked at. The server is asked for metadata alone, and in JSON, so no
// scheme of types is held in memory for it.
type object struct {
	Name              string `json:"name"`
	UID               string `json:"uid"`
	ResourceVersion   string `json:"resourceVersion"`
	DeletionTimestamp string `json:"deletionTimestamp"`
}

// statusError is an answer that is not 200.
type statusError struct {
	code int
	what string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: the API server says %d %s", e.what, e.code, http.StatusText(e.code))
}

// api makes the requests.
type api struct {
	source Source
	mu     sync.Mutex
	client *http.Client
}

func (a *api) http() (*http.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client == nil {
		client, err := a.source.Client()
		if err != nil {
			return nil, fmt.Errorf("prepare to ask the API server: %w", err)
		}
		a.client = client
	}
	return a.client, nil
}

// listTimeout is for a server that takes a request and never answers.
const listTimeout = 30 * time.Second

// maxAnswer bounds an answer: managed fields, which come along, may take some kilobytes.
const maxAnswer = 4 << 20

// ask makes one request; whoever gets the body closes it.
func (a *api) ask(ctx context.Context, kind, path string, query url.Values) (io.ReadCloser, error) {
	client, err := a.http()
	if err != nil {
		return nil, err
	}
	target := strings.TrimSuffix(a.source.Server, "/") + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json;as="+kind+";g=meta.k8s.io;v=v1")
	req.Header.Set("User-Agent", "meshcni-node")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, &statusError{resp.StatusCode, "GET " + path}
	}
	return resp.Body, nil
}

func (a *api) path() string {
	return "/apis/apps/v1/namespaces/" + url.PathEscape(a.source.Namespace) + "/daemonsets"
}

// selection is for a list and a watch of one name, which a role may grant by resourceNames.
func (a *api) selection() url.Values {
	return url.Values{"fieldSelector": {"metadata.name=" + a.source.Name}}
}

// one reads one object; nil when there is none.
func (a *api) one(ctx context.Context, path string) (*object, error) {
	body, err := a.ask(ctx, "PartialObjectMetadata", path, nil)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	var answer struct{ Metadata object }
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("read the API server's answer: %w", err)
	}
	if answer.Metadata.UID == "" {
		return nil, errors.New("the API server's answer is no object")
	}
	return &answer.Metadata, nil
}

func (a *api) get(ctx context.Context) (*object, error) {
	return a.one(ctx, a.path()+"/"+url.PathEscape(a.source.Name))
}

func (a *api) namespace(ctx context.Context) (*object, error) {
	return a.one(ctx, "/api/v1/namespaces/"+url.PathEscape(a.source.Namespace))
}

// list reads the DaemonSet, nil when there is none, and the version of the list, from where a watch may start. (That of the
// object may be long gone from the server's memory.)
func (a *api) list(ctx context.Context) (found *object, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	body, err := a.ask(ctx, "PartialObjectMetadataList", a.path(), a.selection())
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = body.Close() }()
	var answer struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		}
		Items []struct{ Metadata object }
	}
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&answer); err != nil {
		return nil, "", fmt.Errorf("read the API server's list: %w", err)
	}
	if answer.Metadata.ResourceVersion == "" {
		return nil, "", errors.New("the API server's answer is no list")
	}
	for i := range answer.Items {
		if m := &answer.Items[i].Metadata; m.Name == a.source.Name {
			found = m
		}
	}
	return found, answer.Metadata.ResourceVersion, nil
}

// watch gives note what becomes of the DaemonSet since a version, until the server ends the watch, as it does after some
// minutes; version is then where to go on.
func (a *api) watch(ctx context.Context, since string, note func(*object)) (version string, err error) {
	lasts := 300 + rand.IntN(300) //nolint:gosec // spreads nodes, keeps no secret
	ctx, cancel := context.WithTimeout(ctx, time.Duration(lasts)*time.Second+listTimeout)
	defer cancel()
	query := a.selection()
	query.Set("watch", "true")
	query.Set("resourceVersion", since)
	query.Set("allowWatchBookmarks", "true")
	query.Set("timeoutSeconds", strconv.Itoa(lasts))
	body, err := a.ask(ctx, "PartialObjectMetadata", a.path(), query)
	if err != nil {
		return since, err
	}
	defer func() { _ = body.Close() }()
	events := json.NewDecoder(body)
	for {
		var event struct {
			Type   string
			Object struct {
				Metadata object
				Code     int    // of a Status
				Message  string // of a Status
			}
		}
		if err := events.Decode(&event); errors.Is(err, io.EOF) {
			return since, nil
		} else if err != nil {
			return since, fmt.Errorf("read the API server's events: %w", err)
		}
		m := event.Object.Metadata
		switch event.Type {
		case "ADDED", "MODIFIED":
			note(&m)
		case "DELETED":
			note(nil)
		case "BOOKMARK":
		case "ERROR": // 410: the version is too old by now
			return since, &statusError{event.Object.Code, "watch " + a.path() + ": " + event.Object.Message}
		}
		if m.ResourceVersion != "" {
			since = m.ResourceVersion
		}
	}
}
