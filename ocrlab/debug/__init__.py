"""Why a training crashed, hung, ran out of memory or learned nothing: record, replay, bisect, watch, diagnose."""
