// Package vuln holds the tests of .ci/vuln, which looks for known vulnerabilities.
package vuln
