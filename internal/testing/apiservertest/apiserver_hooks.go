package apiservertest

import (
	"encoding/json"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Hook sees each request before the [APIServer] does; n counts them from 1. It returns true if it has dealt with the
// request, and false to pass it on. It may call the server's methods, for instance SetPod to change a pod's UID between two
// requests. Calls are as concurrent as the requests.
type Hook func(n int, w http.ResponseWriter, r *http.Request) (handled bool)

// First applies hook to the first n requests of the server and passes the others on.
func First(n int, hook Hook) Hook {
	return func(i int, w http.ResponseWriter, r *http.Request) bool { return i <= n && hook(i, w, r) }
}

// Answer replies with code and a Kubernetes Status. With 429 and 503 it asks for a second's delay, like a busy API server.
func Answer(code int) Hook {
	return func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		WriteStatus(w, code, "plugintest: "+strconv.Itoa(code)+" as asked")
		return true
	}
}

// Body replies 200 with the bytes and the content type: garbage, another object, a login page.
func Body(contentType string, body []byte) Hook {
	return func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body)
		return true
	}
}

// Hang answers nothing until the client goes away or the server closes.
func Hang() Hook {
	return func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
}

// HangUp closes the connection in place of an answer.
func HangUp() Hook {
	return func(int, http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
}

// Truncate announces a long body and closes the connection after the first bytes of it.
func Truncate() Hook {
	return func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "4096")
		_, _ = w.Write([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{`))
		panic(http.ErrAbortHandler)
	}
}

// WriteStatus replies with code and a JSON Status whose reason fits it, for hooks that need another message.
func WriteStatus(w http.ResponseWriter, code int, message string) {
	retry := 0
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		retry = 1
		w.Header().Set("Retry-After", "1")
	}
	status := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", retry, false).Status()
	status.TypeMeta, status.Message = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, message
	body, err := json.Marshal(status)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
