//! `plan` and `doctor`: what a run will need, and whether this machine has it.

use super::Place;
use crate::cli::{DoctorArgs, PlanArgs};
use crate::error::Error;

pub(super) fn plan(_args: &PlanArgs, _place: &Place) -> Result<(), Error> {
    Err(Error::Usage("plan".to_string()))
}

pub(super) fn doctor(_args: &DoctorArgs, _place: &Place) -> Result<(), Error> {
    Err(Error::Usage("doctor".to_string()))
}
