package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPrintRules(t *testing.T) {
	pod, err := os.Open("../pod.yaml")
	require.NoError(t, err)
	defer func() { _ = pod.Close() }()
	var out strings.Builder
	require.NoError(t, printRules(pod, &out))
	assert.Contains(t, out.String(), "-A ISTIO_INBOUND -p tcp -m multiport --dports 22,15020,15021,15090 -j RETURN\n")
	assert.Contains(t, out.String(), "-A ISTIO_OUTPUT -p tcp -m tcp --dport 3306 -j RETURN\n")

	assert.ErrorContains(t, printRules(strings.NewReader("metadata: {name: a, namespace: b}"), &out), "pod b/a is not redirected: ")
	assert.Error(t, printRules(strings.NewReader("- not a pod"), &out))
}
