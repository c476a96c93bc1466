package kubepod

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ErrInvalidName means that a namespace or name is empty or cannot be part of a URL's path ("..", "a/b"), so no request was made.
// Check with errors.Is(err, kubepod.ErrInvalidName).
var ErrInvalidName = errors.New("not an object name")

// A ConfigError means that the kubeconfig cannot be used: it is missing, unreadable, malformed, incomplete, or names a
// credential helper. Check with errors.As; for a missing file, errors.Is(err, fs.ErrNotExist).
type ConfigError struct {
	// Path is the kubeconfig's path as given to Open.
	Path string
	// Err is the cause, never nil.
	Err error
}

// Error returns the path and the cause.
func (e *ConfigError) Error() string { return fmt.Sprintf("use kubeconfig %q: %v", e.Path, e.Err) }

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

// ErrResponse means garbage, another kind or another object, or a failure that is no Status: something that is no API server has
// answered, and the error quotes it. Check with errors.Is(err, kubepod.ErrResponse).
var ErrResponse = errors.New("not what was asked for")

// responseError is an ErrResponse with its cause.
type responseError struct {
	kind   string                 // that was asked for, "Pod" or "Namespace"; empty: err says it all
	err    error                  // never nil
	status *apierrors.StatusError // by its HTTP status; nil: that says nothing
}

func (e *responseError) Error() string {
	if e.kind == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("response is no %s: %v", e.kind, e.err)
}

func (e *responseError) Unwrap() []error {
	if e.status == nil {
		return []error{ErrResponse, e.err}
	}
	return []error{ErrResponse, e.err, e.status}
}

// transient reports whether the same request may succeed soon. It is true for
//
//   - 404: the plugin may run before the pod has reached this API server's cache,
//   - 401 and 403 of the API server: a token or a role binding may be on its way,
//   - 408, 429 and 5xx, refused and reset connections, failed look-ups and handshakes, truncated answers,
//   - context.DeadlineExceeded, which may be that of one attempt only,
//   - [ErrResponse].
//
// It is false for nil, a [ConfigError], [ErrInvalidName], context.Canceled and every other status (3xx, 400, 410, …).
func transient(err error) bool {
	var config *ConfigError
	switch {
	case err == nil, errors.As(err, &config), errors.Is(err, ErrInvalidName), errors.Is(err, context.Canceled):
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // the network, TLS or the body: no answer that says no
	}
	switch code := int(status.Status().Code); code {
	case http.StatusNotFound, http.StatusUnauthorized, http.StatusForbidden,
		http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	default:
		// Code 0 is a Status body without a code behind a 200: as good as garbage.
		return code == 0 || code >= http.StatusInternalServerError
	}
}
